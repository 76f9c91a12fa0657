#include <mma.h>

#include "kernels/activation/activation_cuda.h"
#include "kernels/elementwise_cuda.cuh"
#include "kernels/moe/moe_cuda.h"

// The mixture for shapes that the form for Hopper (moe_sm90.h) does not take: widths that are no multiples of
// 8, more than 1024 experts or 32 choices.

namespace perigee::kernels::cuda {
namespace {

// A warp a row: top_k times the largest of score + bias, lowest index among equals; then in ascending order.
__global__ void __launch_bounds__(32)
    RouteKernel(View<const float> logits, const float* bias, RouterOptions options, const int32_t* valid_rows,
                int32_t* experts, float* weights) {
  extern __shared__ float scores[];
  const int lane = threadIdx.x;
  const int64_t row = blockIdx.x;
  const int count = static_cast<int>(logits.cols);
  const int top_k = static_cast<int>(options.top_k);
  experts += row * top_k;
  weights += row * top_k;
  if (valid_rows != nullptr && row >= *valid_rows) {
    for (int k = lane; k < top_k; k += 32) {
      experts[k] = -1;
      weights[k] = 0;
    }
    return;
  }
  float* biased = scores + count;
  for (int e = lane; e < count; e += 32) {
    scores[e] = 1.0f / (1.0f + expf(-logits.Row(row)[e]));
    biased[e] = scores[e] + bias[e];
  }
  __syncwarp();
  for (int k = 0; k < top_k; ++k) {
    float best = -INFINITY;
    int index = count;
    for (int e = lane; e < count; e += 32) {
      if (biased[e] > best || (index == count && biased[e] == best)) {
        best = biased[e];
        index = e;
      }
    }
    for (int i = 16; i > 0; i /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, i);
      const int other_index = __shfl_xor_sync(0xffffffffu, index, i);
      if (other > best || (other == best && other_index < index)) {
        best = other;
        index = other_index;
      }
    }
    // NaN everywhere: any expert serves, the row is lost.
    if (index == count) index = k;
    if (lane == 0) {
      biased[index] = -INFINITY;
      int at = k;
      for (; at > 0 && experts[at - 1] > index; --at) experts[at] = experts[at - 1];
      experts[at] = index;
    }
    __syncwarp();
  }
  if (lane != 0) return;
  float sum = 0;
  for (int k = 0; k < top_k; ++k) sum += scores[experts[k]];
  const float scale = options.renormalize ? options.scaling_factor / (sum + 1e-20f) : options.scaling_factor;
  for (int k = 0; k < top_k; ++k) weights[k] = scores[experts[k]] * scale;
}

// The rows of a batch grouped by expert, all on the device: entry i of expert e is place begin[e] + i of
// `rows` (the row) and `slots` (its place among the routing's entries). Their order within an expert does not
// matter: an entry's result depends on itself alone.
struct Grouping {
  int32_t* counts;   // [experts]
  int32_t* begin;    // [experts + 1]
  int32_t* next;     // [experts]
  int32_t* entries;  // [rows * top_k]: entry of the routing
};

__global__ void CountKernel(const int32_t* chosen, int64_t entries, int32_t first, int32_t experts,
                            int32_t* counts) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= entries) return;
  const int32_t e = chosen[i] - first;
  if (e >= 0 && e < experts) atomicAdd(counts + e, 1);
}

__global__ void ScanKernel(int32_t experts, Grouping g) {
  int32_t sum = 0;
  for (int32_t e = 0; e < experts; ++e) {
    g.begin[e] = g.next[e] = sum;
    sum += g.counts[e];
  }
  g.begin[experts] = sum;
}

__global__ void PlaceKernel(const int32_t* chosen, int64_t entries, int32_t first, int32_t experts,
                            Grouping g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= entries) return;
  const int32_t e = chosen[i] - first;
  if (e >= 0 && e < experts) g.entries[atomicAdd(g.next + e, 1)] = static_cast<int32_t>(i);
}

constexpr int kTile = 64;   // rows and columns of a block's result
constexpr int kDepth = 32;  // inputs at a time
constexpr int kPad = 8;
constexpr int kGemmThreads = 128;

// Tile (blockIdx.x columns, blockIdx.y rows, expert blockIdx.z) of out[entry] = in[entry / in_divisor] w_e^T,
// for the entries of one expert; sizes come from the device. out is scaled by `scale` of the entry if that is
// not null.
__global__ void __launch_bounds__(kGemmThreads)
    GroupedGemmKernel(View<const __nv_bfloat16> in, int in_divisor, const __nv_bfloat16* const* weights,
                      Grouping g, View<__nv_bfloat16> out) {
  using namespace nvcuda;
  const int e = blockIdx.z;
  const int first = g.begin[e] + blockIdx.y * kTile;
  const int last = g.begin[e + 1];
  if (first >= last) return;
  __shared__ __nv_bfloat16 a[kTile][kDepth + kPad];
  __shared__ __nv_bfloat16 b[kTile][kDepth + kPad];
  __shared__ float result[kTile][kTile + 4];
  __shared__ int32_t entry[kTile];
  if (threadIdx.x < kTile)
    entry[threadIdx.x] = first + threadIdx.x < last ? g.entries[first + threadIdx.x] : -1;
  __syncthreads();
  const __nv_bfloat16* w = weights[e];
  const int column = blockIdx.x * kTile;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / 2 * 32, warp_col = warp % 2 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][2];
  for (auto& pair : sums) {
    for (auto& s : pair) wmma::fill_fragment(s, 0.0f);
  }
  const __nv_bfloat16 zero = __float2bfloat16_rn(0.0f);
  for (int64_t depth = 0; depth < in.cols; depth += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kGemmThreads) {
      const int r = i / kDepth, c = i % kDepth;
      const bool inside = depth + c < in.cols;
      a[r][c] = inside && entry[r] >= 0 ? in.Row(entry[r] / in_divisor)[depth + c] : zero;
      b[r][c] = inside && column + r < out.cols ? w[(column + r) * in.cols + depth + c] : zero;
    }
    __syncthreads();
    for (int k = 0; k < kDepth; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> right[2];
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(left[i], &a[warp_row + 16 * i][k], kDepth + kPad);
        wmma::load_matrix_sync(right[i], &b[warp_col + 16 * i][k], kDepth + kPad);
      }
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      wmma::store_matrix_sync(&result[warp_row + 16 * i][warp_col + 16 * j], sums[i][j], kTile + 4,
                              wmma::mem_row_major);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile; i += kGemmThreads) {
    const int r = i / kTile, c = i % kTile;
    if (entry[r] >= 0 && column + c < out.cols) Store(result[r][c], out.Row(entry[r]) + column + c);
  }
}

void GroupedGemm(const KernelContext& context, ConstMatrix in, int in_divisor, const BFloat16* const* weights,
                 int64_t experts, int64_t most_rows, const Grouping& g, Matrix out) {
  const dim3 grid(Blocks(out.cols, kTile), Blocks(most_rows, kTile), static_cast<unsigned>(experts));
  GroupedGemmKernel<<<grid, kGemmThreads, 0, StreamOf(context)>>>(
      ViewOf<__nv_bfloat16>(in), in_divisor, reinterpret_cast<const __nv_bfloat16* const*>(weights), g,
      ViewOf<__nv_bfloat16>(out));
  CheckLaunch();
}

Grouping GroupByExpert(const KernelContext& context, const Routing& routing, int64_t first, int64_t experts) {
  const auto entries = static_cast<int64_t>(routing.experts.size());
  Workspace& room = *context.workspace;
  const Grouping g{room.Ints(experts), room.Ints(experts + 1), room.Ints(experts), room.Ints(entries)};
  PERIGEE_CUDA_CHECK(
      cudaMemsetAsync(g.counts, 0, static_cast<size_t>(experts) * sizeof(int32_t), StreamOf(context)));
  constexpr int kThreads = 256;
  const auto f = static_cast<int32_t>(first), n = static_cast<int32_t>(experts);
  CountKernel<<<Blocks(entries, kThreads), kThreads, 0, StreamOf(context)>>>(routing.experts.data(), entries,
                                                                             f, n, g.counts);
  ScanKernel<<<1, 1, 0, StreamOf(context)>>>(n, g);
  PlaceKernel<<<Blocks(entries, kThreads), kThreads, 0, StreamOf(context)>>>(routing.experts.data(), entries,
                                                                             f, n, g);
  CheckLaunch();
  return g;
}

}  // namespace

void RouteTopKPlain(const KernelContext& context, ConstMatrixF logits, std::span<const float> bias,
                    const RouterOptions& options, const Routing& routing) {
  const auto shared = static_cast<size_t>(2 * logits.cols) * sizeof(float);
  PERIGEE_CUDA_CHECK(cudaFuncSetAttribute(RouteKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)));
  RouteKernel<<<static_cast<unsigned>(logits.rows), 32, shared, StreamOf(context)>>>(
      {logits.data, logits.rows, logits.cols, logits.stride}, bias.data(), options, context.valid_rows,
      routing.experts.data(), routing.weights.data());
  CheckLaunch();
}

void MoeForwardPlain(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                     ConstMatrix x, Matrix y) {
  const Workspace::Scope scope(*context.workspace);
  const auto experts = static_cast<int64_t>(weights.experts.size());
  const int64_t width = weights.experts[0].down.in();
  const int64_t entries = x.rows * routing.top_k;
  const Grouping g = GroupByExpert(context, routing, weights.first_expert, experts);
  const auto* gate_up_of = weights.table.addresses.As<const BFloat16*>();
  const auto* down_of = gate_up_of + experts + (weights.table.shared ? 1 : 0);
  const Matrix gate_up = context.Room(entries, 2 * width);
  GroupedGemm(context, x, static_cast<int>(routing.top_k), gate_up_of, experts, x.rows, g, gate_up);
  const Matrix gate = gate_up.Cols(0, width);
  SiluMul(context, gate, gate_up.Cols(width, width), gate);
  const Matrix down = context.Room(entries, x.cols);
  GroupedGemm(context, gate, 1, down_of, experts, x.rows, g, down);
  const bool has_shared = weights.shared.down.in() > 0;
  if (has_shared) GatedMlp(context, weights.shared, x, y);
  const auto from = ViewOf<__nv_bfloat16>(ConstMatrix(down));
  const auto to = ViewOf<__nv_bfloat16>(y);
  const int64_t top_k = routing.top_k;
  const int32_t* chosen = routing.experts.data();
  const float* shares = routing.weights.data();
  const int64_t first = weights.first_expert;
  ForElements(context, y.rows, y.cols, [=] __device__(int64_t r, int64_t c) {
    float sum = 0;
    for (int64_t i = r * top_k; i < (r + 1) * top_k; ++i) {
      const int64_t e = chosen[i] - first;
      if (e >= 0 && e < experts) sum += shares[i] * Load(from.Row(i) + c);
    }
    Store(has_shared ? sum + Load(to.Row(r) + c) : sum, to.Row(r) + c);
  });
}

}  // namespace perigee::kernels::cuda
