#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/moe/moe_held-inl.cuh"
#include "kernels/moe/moe_sm90_parts.h"
#include "kernels/programmatic_launch.cuh"

// Routing, order by expert, gather and combine: everything of the mixture that is not a product.
namespace perigee::kernels::cuda {
namespace {

constexpr uint32_t kAll = 0xFFFFFFFFu;
constexpr int kRouteWarps = 8;
constexpr int kMaxPerLane = 32;  // scores of a lane: 1024 experts
constexpr int kTileEntries = 256;

// A choice that orders by score, then by lower index: the larger key wins. NaN is below every number.
__device__ __forceinline__ uint64_t ChoiceKey(float score, int index) {
  const float number = isnan(score) ? -INFINITY : score + 0.0f;  // -0 becomes +0: equal values tie
  const uint32_t bits = __float_as_uint(number);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | static_cast<uint32_t>(~index);
}

__device__ __forceinline__ uint64_t WarpMax(uint64_t key) {
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAll, key, step);
    key = other > key ? other : key;
  }
  return key;
}

// One warp a row. Lane l holds experts l, l + 32, ...; kPerLane of them.
template <int kPerLane>
__global__ void __launch_bounds__(kRouteWarps * 32) RouteKernel(MoeRouteArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.x / 32;
  if (row >= args.rows) return;
  WaitForPrevious();
  int32_t* chosen = args.chosen + row * args.top_k;
  float* weights = args.weights + row * args.top_k;
  if (args.valid_rows != nullptr && row >= *args.valid_rows) {
    if (lane < args.top_k) {
      chosen[lane] = -1;
      weights[lane] = 0;
    }
    return;
  }
  float score[kPerLane];
  uint64_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    const bool there = e < args.experts;
    score[i] = there ? 1.0f / (1.0f + expf(-args.logits[row * args.logits_stride + e])) : 0.0f;
    key[i] = there ? ChoiceKey(score[i] + args.bias[e], e) : 0;
  }
  // Lane k keeps the k-th choice and its score.
  int mine = 0x7FFFFFFF;
  float mine_score = 0;
  for (int k = 0; k < args.top_k; ++k) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = key[i] > best ? key[i] : best;
    best = WarpMax(best);
    const int e = static_cast<int>(~static_cast<uint32_t>(best));
    float s = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == e) {
        s = score[i];
        key[i] = 0;
      }
    }
    s = __shfl_sync(kAll, s, e % 32);
    if (lane == k) {
      mine = e;
      mine_score = s;
    }
  }
  // Into ascending index: the place of a choice is the number of smaller ones.
  int place = 0;
  for (int k = 0; k < args.top_k; ++k) place += __shfl_sync(kAll, mine, k) < mine ? 1 : 0;
  if (lane < args.top_k) chosen[place] = mine;
  float sum = 0;  // over ascending index
  for (int k = 0; k < args.top_k; ++k) {
    const uint32_t holder = __ballot_sync(kAll, lane < args.top_k && place == k);
    sum += __shfl_sync(kAll, mine_score, __ffs(holder) - 1);
  }
  const float scale = args.renormalize ? args.scaling_factor / (sum + 1e-20f) : args.scaling_factor;
  if (lane < args.top_k) weights[place] = mine_score * scale;
}

__device__ __forceinline__ int Held(const MoeForwardArgs& args) {
  return args.shape.experts + (args.shape.shared ? 1 : 0);
}

// Exclusive sum over the block's threads; blockDim.x = 1024.
__device__ int BlockScan(int value, int* total) {
  __shared__ int warp_sum[32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sum[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll 4
  for (int w = 0; w < 32; ++w) {
    before += w < warp ? warp_sum[w] : 0;
    all += warp_sum[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

// Places and tiles of each held expert from the counts; thread e has expert e. Tiles of an expert are nearly
// equal.
__device__ int PlaceExperts(int count, const MoePlan& plan) {
  int total;
  const int first = BlockScan(count, &total);
  const int tiles = (count + kTileEntries - 1) / kTileEntries;
  int all_tiles;
  const int first_tile = BlockScan(tiles, &all_tiles);
  for (int t = 0; t < tiles; ++t) {
    const int begin = static_cast<int>(static_cast<int64_t>(count) * t / tiles);
    const int end = static_cast<int>(static_cast<int64_t>(count) * (t + 1) / tiles);
    plan.tiles[first_tile + t] = {static_cast<int32_t>(threadIdx.x), first + begin, end - begin,
                                  (end - begin + 15) / 16};
  }
  if (threadIdx.x == 0) *plan.num_tiles = all_tiles;
  return first;
}

constexpr int kCountThreads = 512;

__global__ void __launch_bounds__(kCountThreads) CountKernel(MoeForwardArgs args, MoePlan plan) {
  __shared__ int count[1024];
  for (int e = threadIdx.x; e < Held(args); e += kCountThreads) count[e] = 0;
  __syncthreads();
  const int per_row = args.top_k + 1;
  const int pairs = static_cast<int>(args.rows) * per_row;
  for (int i = blockIdx.x * kCountThreads + threadIdx.x; i < pairs; i += gridDim.x * kCountThreads) {
    const int e = HeldExpert(args, i / per_row, i % per_row);
    if (e >= 0) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < Held(args); e += kCountThreads) {
    if (count[e] > 0) atomicAdd(&plan.counts[e], count[e]);
  }
}

__global__ void __launch_bounds__(1024) PlanKernel(int held, MoePlan plan) {
  const int e = threadIdx.x;
  const int first = PlaceExperts(e < held ? plan.counts[e] : 0, plan);
  if (e < held) plan.next[e] = first;
}

constexpr int kGatherRows = 32;  // of a block at most
constexpr int kGatherThreads = 256;

// Takes places for the entries of block_rows rows (one atomic an expert and block) and copies the rows
// there, each read once. The order inside an expert varies between runs; no value depends on it.
__global__ void __launch_bounds__(kGatherThreads)
    GatherKernel(MoeForwardArgs args, MoePlan plan, int block_rows) {
  __shared__ int count[1024];
  __shared__ int base[1024];
  __shared__ int place_of[kGatherRows * 33];
  const int per_row = args.top_k + 1;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * block_rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(block_rows), args.rows - first_row));
  const int pairs = rows * per_row;
  for (int e = threadIdx.x; e < Held(args); e += kGatherThreads) count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kGatherThreads) {
    const int e = HeldExpert(args, first_row + i / per_row, i % per_row);
    place_of[i] = e >= 0 ? atomicAdd(&count[e], 1) : -1;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < Held(args); e += kGatherThreads) {
    base[e] = count[e] > 0 ? atomicAdd(&plan.next[e], count[e]) : 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kGatherThreads) {
    const int e = HeldExpert(args, first_row + i / per_row, i % per_row);
    if (e >= 0) {
      place_of[i] += base[e];
      plan.row_of[place_of[i]] = static_cast<int32_t>(first_row + i / per_row);
    }
    plan.place[first_row * per_row + i] = place_of[i];
  }
  __syncthreads();
  const int chunks = args.shape.hidden / 8;
  for (int i = threadIdx.x; i < rows * chunks; i += kGatherThreads) {
    const int r = i / chunks;
    const int c = i % chunks;
    const uint4 value = reinterpret_cast<const uint4*>(args.x + (first_row + r) * args.x_stride)[c];
    for (int k = 0; k < per_row; ++k) {
      const int64_t place = place_of[r * per_row + k];
      if (place >= 0) __stcs(reinterpret_cast<uint4*>(plan.rows + place * args.shape.hidden) + c, value);
    }
  }
}

__device__ __forceinline__ void AddScaled(const uint4& bits, float weight, float (&sum)[8]) {
  const auto* pair = reinterpret_cast<const __nv_bfloat162*>(&bits);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = __bfloat1622float2(pair[i]);
    sum[2 * i] = fmaf(weight, v.x, sum[2 * i]);
    sum[2 * i + 1] = fmaf(weight, v.y, sum[2 * i + 1]);
  }
}

// One block a row, eight columns a thread and pass.
__global__ void CombineKernel(MoeForwardArgs args, MoePlan plan) {
  const int64_t row = blockIdx.x;
  const int per_row = args.top_k + 1;
  __shared__ int place[33];
  __shared__ float weight[33];
  if (threadIdx.x < per_row) {
    place[threadIdx.x] = plan.place[row * per_row + threadIdx.x];
    weight[threadIdx.x] = threadIdx.x < args.top_k ? args.weights[row * args.top_k + threadIdx.x] : 1.0f;
  }
  __syncthreads();
  const int hidden = args.shape.hidden;
  for (int c = threadIdx.x; c < hidden / 8; c += blockDim.x) {
    float sum[8] = {};
    for (int k = 0; k < per_row; ++k) {
      if (place[k] < 0) continue;
      AddScaled(
          __ldcs(reinterpret_cast<const uint4*>(plan.rows + static_cast<int64_t>(place[k]) * hidden) + c),
          weight[k], sum);
    }
    if (args.addend != nullptr)
      AddScaled(reinterpret_cast<const uint4*>(args.addend + row * hidden)[c], 1.0f, sum);
    uint4 packed;
    auto* pair = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    reinterpret_cast<uint4*>(args.y + row * args.y_stride)[c] = packed;
  }
}

int Blocks(int64_t count, int64_t per_block) {
  return static_cast<int>((count + per_block - 1) / per_block);
}

}  // namespace

cudaError_t MoeRoute(const MoeRouteArgs& args, cudaStream_t stream) {
  if (args.rows < 0 || args.experts < 1 || args.experts > 32 * kMaxPerLane || args.top_k < 1 ||
      args.top_k > 32 || args.top_k > args.experts) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int blocks = Blocks(args.rows, kRouteWarps);
  return LaunchInChain(args.experts <= 256 ? RouteKernel<8> : RouteKernel<kMaxPerLane>, blocks,
                       kRouteWarps * 32, stream, args);
}

cudaError_t MoePlanTiles(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream) {
  const int held = args.shape.held();
  const cudaError_t error =
      cudaMemsetAsync(plan.counts, 0, static_cast<size_t>(held) * sizeof(int32_t), stream);
  if (error != cudaSuccess) return error;
  CountKernel<<<std::min(Blocks(args.rows * (args.top_k + 1), kCountThreads), 128), kCountThreads, 0,
                stream>>>(args, plan);
  PlanKernel<<<1, 1024, 0, stream>>>(held, plan);
  const int block_rows = static_cast<int>(std::clamp<int64_t>(args.rows / 256, 1, kGatherRows));
  GatherKernel<<<Blocks(args.rows, block_rows), kGatherThreads, 0, stream>>>(args, plan, block_rows);
  return cudaGetLastError();
}

cudaError_t MoeCombine(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream) {
  const int threads = std::min(1024, (args.shape.hidden / 8 + 31) / 32 * 32);
  CombineKernel<<<static_cast<int>(args.rows), std::max(threads, 64), 0, stream>>>(args, plan);
  return cudaGetLastError();
}

}  // namespace perigee::kernels::cuda
