#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/moe/moe_sm90_parts.h"

// Few rows: time is the reading of the chosen experts' weights. A warp takes 16 rows of weights (for the up
// product 8 gate rows and the 8 up rows of the same columns) from memory straight into the fragments of
// mma.m16n8k16, once, against all entries of the expert. Lane c of a quad reads 8 neighbouring values of K
// where the product's layout has them apart; the entries are read in the same order, so that the sum runs
// over the same products.
namespace perigee::kernels::cuda {
namespace {

constexpr int kWarps = 8;

struct StreamParams {
  const __nv_bfloat16* const* weights;
  const MoeTile* tiles;
  const int32_t* num_tiles;
  const int32_t* row_of;    // up: the entries' rows in `in`; null: entries lie in order
  const __nv_bfloat16* in;  // [., inner]
  int64_t in_stride;
  __nv_bfloat16* out;  // [entries, columns]
  int inner;
  int columns;
};

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

// 16 rows of weights against up to 8 entries.
template <bool kUp>
__device__ void StreamUnit(const MoeTile& tile, int unit, const StreamParams& p) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int column = unit * (kUp ? 8 : 16) + g;
  const int other = kUp ? p.columns + column : column + 8;
  const bool low_there = column < p.columns;
  const bool high_there = kUp ? low_there : other < p.columns;
  const __nv_bfloat16* weights = p.weights[tile.expert] + c * 8;
  const __nv_bfloat16* low_row = low_there ? weights + static_cast<int64_t>(column) * p.inner : nullptr;
  const __nv_bfloat16* high_row = high_there ? weights + static_cast<int64_t>(other) * p.inner : nullptr;
  const __nv_bfloat16* entry = nullptr;
  if (g < tile.count) {
    const int64_t row = kUp ? p.row_of[tile.first + g] : tile.first + g;
    entry = p.in + row * p.in_stride + c * 8;
  }
  float acc[4] = {};
  const int inner = p.inner - c * 8;  // of this lane
  Fragment low, high, next_low, next_high;
  Load(low_row, 0, inner, low);
  Load(high_row, 0, inner, high);
  for (int k = 0; k < p.inner; k += kStep) {
    Load(low_row, k + kStep, inner, next_low);
    Load(high_row, k + kStep, inner, next_high);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = k + i * 32;
      const uint4 b =
          entry == nullptr || at >= inner ? uint4{0, 0, 0, 0} : *reinterpret_cast<const uint4*>(entry + at);
      Mma(acc, low.part[i].x, high.part[i].x, low.part[i].y, high.part[i].y, b.x, b.y);
      Mma(acc, low.part[i].z, high.part[i].z, low.part[i].w, high.part[i].w, b.z, b.w);
    }
    low = next_low;
    high = next_high;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = c * 2 + j;
    if (i >= tile.count) continue;
    __nv_bfloat16* out = p.out + static_cast<int64_t>(tile.first + i) * p.columns;
    if constexpr (kUp) {
      if (low_there) out[column] = __float2bfloat16(acc[j] / (1.0f + __expf(-acc[j])) * acc[2 + j]);
    } else {
      if (low_there) out[column] = __float2bfloat16(acc[j]);
      if (high_there) out[other] = __float2bfloat16(acc[2 + j]);
    }
  }
}

// Neighbouring units go to different multiprocessors, so that few units fill the chip evenly.
template <bool kUp>
__global__ void __launch_bounds__(kWarps * 32, 2) StreamKernel(StreamParams p) {
  const int units = (p.columns + (kUp ? 7 : 15)) / (kUp ? 8 : 16);
  const int total = *p.num_tiles * units;
  const int warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  for (int u = warp; u < total; u += gridDim.x * kWarps) {
    StreamUnit<kUp>(p.tiles[u / units], u % units, p);
  }
}

}  // namespace

cudaError_t MoeStream(const MoeForwardArgs& args, const MoePlan& plan, __nv_bfloat16* out,
                      cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  StreamParams up{args.gate_up,  plan.tiles, plan.num_tiles,    plan.row_of,     args.x,
                  args.x_stride, plan.act,   args.shape.hidden, args.shape.width};
  StreamKernel<true><<<2 * processors, kWarps * 32, 0, stream>>>(up);
  StreamParams down{args.down,        plan.tiles, plan.num_tiles,   nullptr,          plan.act,
                    args.shape.width, out,        args.shape.width, args.shape.hidden};
  StreamKernel<false><<<2 * processors, kWarps * 32, 0, stream>>>(down);
  return cudaGetLastError();
}

}  // namespace perigee::kernels::cuda
