#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/moe/moe_held-inl.cuh"
#include "kernels/moe/moe_sm90_parts.h"
#include "kernels/programmatic_launch.cuh"

// Few rows: time is the reading of the chosen experts' weights, and then the launches. Two kernels: gate, up
// and SwiGLU; down and the sum over experts. A warp takes 16 rows of weights (for the up product 8 gate rows
// and the 8 up rows of the same columns) from memory straight into the fragments of mma.m16n8k16, once,
// against all entries of the expert. Lane c of a quad reads 8 neighbouring values of K where the product's
// layout has them apart; the entries are read in the same order, so that the sum runs over the same products.
namespace perigee::kernels::cuda {
namespace {

constexpr int kMaxPairs = kMoeSmallRows * (kMoeMaxTopK + 1);

// The entries (pairs of a row and an expert) of the few rows in the order of their experts. Every block makes
// it for itself, which takes less time than a launch.
struct Plan {
  struct Tile {
    int expert;
    int first;  // place of its first entry
    int count;
  };
  int num_tiles;
  Tile tiles[kMaxPairs];
  int row_of[kMaxPairs];    // of the entry at a place
  int place_of[kMaxPairs];  // [rows, top_k + 1], the last is the shared expert's; -1: held elsewhere
  int expert[kMaxPairs];    // [rows, top_k + 1]
  bool first[kMaxPairs];    // the pair is the first of its expert
};

__device__ void MakePlan(const MoeForwardArgs& args, Plan& plan) {
  const int per_row = args.top_k + 1;
  const int pairs = static_cast<int>(args.rows) * per_row;
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    plan.expert[i] = HeldExpert(args, i / per_row, i % per_row);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const int expert = plan.expert[i];
    int before = 0, earlier = 0;
    for (int j = 0; j < pairs; ++j) {
      const int other = plan.expert[j];
      before += other >= 0 && other < expert ? 1 : 0;
      earlier += other == expert && j < i ? 1 : 0;
    }
    const int place = before + earlier;
    plan.place_of[i] = expert < 0 ? -1 : place;
    plan.first[i] = expert >= 0 && earlier == 0;
    if (expert >= 0) plan.row_of[place] = i / per_row;
  }
  __syncthreads();
  if (threadIdx.x == 0) plan.num_tiles = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    if (!plan.first[i]) continue;
    int tile = 0, count = 0;
    for (int j = 0; j < pairs; ++j) {
      tile += plan.first[j] && plan.expert[j] < plan.expert[i] ? 1 : 0;
      count += plan.expert[j] == plan.expert[i] ? 1 : 0;
    }
    plan.tiles[tile] = {plan.expert[i], plan.place_of[i], count};
    atomicAdd(&plan.num_tiles, 1);
  }
  __syncthreads();
}

constexpr int kLoads = 4;  // 16-byte reads of a row, lane and step
constexpr int kStep = 32 * kLoads;

// A lane's part of one row of weights and one step.
struct Fragment {
  uint4 part[kLoads];
};

__device__ __forceinline__ uint4 LoadOnce(const __nv_bfloat16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ void Load(const __nv_bfloat16* row, int k, int inner, Fragment& f) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = k + i * 32;
    f.part[i] = row == nullptr || at >= inner ? uint4{0, 0, 0, 0} : LoadOnce(row + at);
  }
}

__device__ __forceinline__ void Mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 rows of weights, `low_row` and `high_row` of this lane's quad among them, times up to 8 entries, `entry`
// of this lane's quad. Null rows count as zeros. Entries 2c and 2c + 1 of the low row, then of the high one.
__device__ __forceinline__ void Multiply(const __nv_bfloat16* low_row, const __nv_bfloat16* high_row,
                                         const __nv_bfloat16* entry, int inner, float (&acc)[4]) {
  const int skipped = threadIdx.x % 4 * 8;
  if (low_row != nullptr) low_row += skipped;
  if (high_row != nullptr) high_row += skipped;
  if (entry != nullptr) entry += skipped;
  const int own = inner - skipped;
  Fragment low, high, next_low, next_high;
  Load(low_row, 0, own, low);
  Load(high_row, 0, own, high);
  for (int k = 0; k < inner; k += kStep) {
    Load(low_row, k + kStep, own, next_low);
    Load(high_row, k + kStep, own, next_high);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = k + i * 32;
      const uint4 b =
          entry == nullptr || at >= own ? uint4{0, 0, 0, 0} : *reinterpret_cast<const uint4*>(entry + at);
      Mma(acc, low.part[i].x, high.part[i].x, low.part[i].y, high.part[i].y, b.x, b.y);
      Mma(acc, low.part[i].z, high.part[i].z, low.part[i].w, high.part[i].w, b.z, b.w);
    }
    low = next_low;
    high = next_high;
  }
}

constexpr int kUpWarps = 16;
constexpr int kUpColumns = 8;  // of a warp's unit

// act [entries, width] = silu(gate) * up.
__global__ void __launch_bounds__(kUpWarps * 32, 1) UpKernel(MoeForwardArgs args, __nv_bfloat16* act) {
  __shared__ Plan plan;
  WaitForPrevious();
  MakePlan(args, plan);
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int hidden = args.shape.hidden;
  const int width = args.shape.width;
  const int units = (width + kUpColumns - 1) / kUpColumns;
  // Neighbouring units go to different multiprocessors, so that few units fill the chip evenly.
  for (int u = threadIdx.x / 32 * gridDim.x + blockIdx.x; u < plan.num_tiles * units;
       u += gridDim.x * kUpWarps) {
    const Plan::Tile tile = plan.tiles[u / units];
    const int column = u % units * kUpColumns + g;
    const bool there = column < width;
    const __nv_bfloat16* weights = args.gate_up[tile.expert];
    const auto row = [&](int64_t r) { return there ? weights + r * hidden : nullptr; };
    const __nv_bfloat16* entry =
        g < tile.count ? args.x + plan.row_of[tile.first + g] * args.x_stride : nullptr;
    float acc[4] = {};
    Multiply(row(column), row(width + column), entry, hidden, acc);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = lane % 4 * 2 + j;
      if (i >= tile.count || !there) continue;
      act[static_cast<int64_t>(tile.first + i) * width + column] =
          __float2bfloat16(acc[j] / (1.0f + __expf(-acc[j])) * acc[2 + j]);
    }
  }
}

constexpr int kDownWarps = 9;     // eight chosen experts and the shared one
constexpr int kDownColumns = 16;  // of a block

// y = sum over each row's entries of weight * down(act), in ascending expert index, + addend.
__global__ void __launch_bounds__(kDownWarps * 32, 2)
    DownKernel(MoeForwardArgs args, const __nv_bfloat16* act) {
  __shared__ Plan plan;
  __shared__ float outputs[kMaxPairs][kDownColumns];
  WaitForPrevious();
  MakePlan(args, plan);
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int hidden = args.shape.hidden;
  const int width = args.shape.width;
  const int first_column = blockIdx.x * kDownColumns;
  for (int t = threadIdx.x / 32; t < plan.num_tiles; t += kDownWarps) {
    const Plan::Tile tile = plan.tiles[t];
    const __nv_bfloat16* weights = args.down[tile.expert];
    const auto row = [&](int column) {
      return column < hidden ? weights + static_cast<int64_t>(column) * width : nullptr;
    };
    const __nv_bfloat16* entry =
        g < tile.count ? act + static_cast<int64_t>(tile.first + g) * width : nullptr;
    float acc[4] = {};
    Multiply(row(first_column + g), row(first_column + g + 8), entry, width, acc);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = lane % 4 * 2 + j;
      if (i >= tile.count) continue;
      outputs[tile.first + i][g] = acc[j];
      outputs[tile.first + i][g + 8] = acc[2 + j];
    }
  }
  __syncthreads();
  const int per_row = args.top_k + 1;
  for (int i = threadIdx.x; i < static_cast<int>(args.rows) * kDownColumns; i += kDownWarps * 32) {
    const int row = i / kDownColumns;
    const int column = first_column + i % kDownColumns;
    if (column >= hidden) continue;
    float sum = 0;
    for (int k = 0; k < per_row; ++k) {
      const int place = plan.place_of[row * per_row + k];
      if (place < 0) continue;
      const float weight = k < args.top_k ? args.weights[row * args.top_k + k] : 1.0f;
      sum = fmaf(weight, outputs[place][i % kDownColumns], sum);
    }
    if (args.addend != nullptr)
      sum += __bfloat162float(args.addend[static_cast<int64_t>(row) * hidden + column]);
    args.y[row * args.y_stride + column] = __float2bfloat16(sum);
  }
}

}  // namespace

cudaError_t MoeStream(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = LaunchInChain(UpKernel, processors, kUpWarps * 32, stream, args, plan.act);
  if (error != cudaSuccess) return error;
  const int blocks = (args.shape.hidden + kDownColumns - 1) / kDownColumns;
  return LaunchInChain(DownKernel, blocks, kDownWarps * 32, stream, args, plan.act);
}

}  // namespace perigee::kernels::cuda
