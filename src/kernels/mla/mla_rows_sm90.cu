#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/mla/mla_flash_runs.h"
#include "kernels/mla/mla_sm90.h"

// Moves of records and keys, the merge of partial attention, and the index that cuDNN reads.
namespace perigee::kernels::cuda {
namespace {

constexpr int kThreads = 256;

int Blocks(int64_t work, int64_t most = 1 << 16) {
  return static_cast<int>(std::clamp<int64_t>((work + kThreads - 1) / kThreads, 1, most));
}

__device__ __forceinline__ uint4 Load(const __nv_bfloat16* p) {
  return *reinterpret_cast<const uint4*>(p);
}
__device__ __forceinline__ void Store(__nv_bfloat16* p, const uint4& v) {
  *reinterpret_cast<uint4*>(p) = v;
}

__device__ __forceinline__ int64_t RecordAt(const MlaPool& pool, const int32_t* block_table,
                                            int64_t position) {
  return (static_cast<int64_t>(block_table[position / pool.block_tokens]) * pool.block_tokens +
          position % pool.block_tokens) *
         (pool.rank + pool.rope);
}

// Blocks of one run (blockIdx.x) share its rows.
__global__ void __launch_bounds__(kThreads) AppendKernel(MlaAppendArgs args) {
  const Segment run = args.runs.list[blockIdx.x];
  const int chunks = (args.pool.rank + args.pool.rope) / 8;
  const int32_t* table = args.runs.block_tables + run.first_block;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < run.q_len * chunks;
       i += static_cast<int64_t>(gridDim.y) * kThreads) {
    const int64_t row = run.q_begin + i / chunks;
    const int column = static_cast<int>(i % chunks) * 8;
    const uint4 v = column < args.pool.rank
                        ? Load(args.latent + row * args.latent_stride + column)
                        : Load(args.shared_key + row * args.shared_key_stride + column - args.pool.rank);
    Store(args.pool.data + RecordAt(args.pool, table, run.kv_len - run.q_len + i / chunks) + column, v);
  }
}

__global__ void __launch_bounds__(kThreads)
    GatherKernel(MlaPool pool, const int32_t* block_table, int64_t first_key, int64_t count,
                 __nv_bfloat16* records) {
  const int chunks = (pool.rank + pool.rope) / 8;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count * chunks;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t from = RecordAt(pool, block_table, first_key + i / chunks) + i % chunks * 8;
    Store(records + i * 8, Load(pool.data + from));
  }
}

__global__ void __launch_bounds__(kThreads) KeysKernel(MlaKeysArgs args) {
  const int width = args.nope + args.rope;
  const int chunks = width / 8;
  const int64_t total = args.count * args.num_heads * chunks;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int column = static_cast<int>(i % chunks) * 8;
    const int64_t key_head = i / chunks;
    const int64_t key = key_head / args.num_heads;
    const uint4 v = column < args.nope
                        ? Load(args.expanded + key_head * (args.nope + args.value) + column)
                        : Load(args.records + key * (args.rank + args.rope) + args.rank + column - args.nope);
    Store(args.keys + key_head * width + column, v);
  }
}

// Eight values of a row and head a thread.
__global__ void __launch_bounds__(kThreads) MergeKernel(MlaMergeArgs args) {
  const int chunks = args.value / 8;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row_head = i / chunks;
  const bool there = row_head < args.rows * args.num_heads;
  const float before = args.first || !there ? -INFINITY : args.lse[row_head];
  __syncthreads();  // the threads of a row and head, all of this block, have read what one of them replaces
  if (!there) return;
  const int64_t at = row_head * args.value + i % chunks * 8;
  const float more = args.more_lse[row_head];
  const float max = fmaxf(before, more);
  float weight = 0, more_weight = 0, lse = -INFINITY;
  if (max > -INFINITY) {
    const float a = expf(before - max);
    const float b = expf(more - max);
    weight = a / (a + b);
    more_weight = b / (a + b);
    lse = max + logf(a + b);
  }
  const uint4 bits = Load(args.more + at);
  const auto* pair = reinterpret_cast<const __nv_bfloat162*>(&bits);
  float result[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 v = __bfloat1622float2(pair[j]);
    // A share of no keys may hold anything.
    result[2 * j] = more_weight == 0 ? 0 : v.x * more_weight;
    result[2 * j + 1] = more_weight == 0 ? 0 : v.y * more_weight;
  }
  auto* out = reinterpret_cast<float4*>(args.out + at);
  if (weight != 0) {
    const float4 low = out[0];
    const float4 high = out[1];
    const float old[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) result[j] += old[j] * weight;
  }
  out[0] = {result[0], result[1], result[2], result[3]};
  out[1] = {result[4], result[5], result[6], result[7]};
  if (args.result != nullptr) {
    uint4 packed;
    auto* to = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = __floats2bfloat162_rn(result[2 * j], result[2 * j + 1]);
    Store(args.result + at, packed);
  }
  if (i % chunks == 0) args.lse[row_head] = lse;
}

__global__ void IndexKernel(MlaFlashRuns runs, int count, MlaFlashStrides strides, MlaFlashIndex index) {
  const int i = threadIdx.x;
  if (i > count) return;
  const MlaFlashRun run = i < count ? runs.run[i] : MlaFlashRun{};
  index.q[i] = run.q_begin * strides.q;
  index.k[i] = run.k_begin * strides.k;
  index.v[i] = run.k_begin * strides.v;
  index.out[i] = run.q_begin * strides.out;
  index.lse[i] = run.q_begin * strides.lse;
  if (i < count) {
    index.q_len[i] = static_cast<int32_t>(run.q_len);
    index.k_len[i] = static_cast<int32_t>(run.k_len);
  }
}

__global__ void __launch_bounds__(kThreads)
    TransposeKernel(const float* from, int64_t rows, int heads, float* to) {
  const int64_t i =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;  // neighbours: rows of one head
  if (i < rows * heads) to[i % rows * heads + i / rows] = from[i];
}

bool Aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

bool ValidPool(const MlaPool& pool) {
  return pool.rank > 0 && pool.rank % 8 == 0 && pool.rope >= 0 && pool.rope % 8 == 0 &&
         pool.block_tokens > 0 && Aligned(pool.data);
}

}  // namespace

cudaError_t MlaAppendRecords(const MlaAppendArgs& args, cudaStream_t stream) {
  if (!ValidPool(args.pool) || args.latent_stride % 8 != 0 || args.shared_key_stride % 8 != 0 ||
      !Aligned(args.latent) || !Aligned(args.shared_key)) {
    return cudaErrorInvalidValue;
  }
  if (args.runs.count == 0) return cudaSuccess;
  // The lengths are on the device: few runs may be long ones.
  const int share = std::max(1, 512 / args.runs.count);
  AppendKernel<<<dim3(args.runs.count, share), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t MlaGatherRecords(const MlaPool& pool, const int32_t* block_table, int64_t first_key,
                             int64_t count, __nv_bfloat16* records, cudaStream_t stream) {
  if (!ValidPool(pool) || !Aligned(records) || first_key < 0 || count < 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  GatherKernel<<<Blocks(count * (pool.rank + pool.rope) / 8), kThreads, 0, stream>>>(
      pool, block_table, first_key, count, records);
  return cudaGetLastError();
}

cudaError_t MlaAssembleKeys(const MlaKeysArgs& args, cudaStream_t stream) {
  if (args.nope % 8 != 0 || args.value % 8 != 0 || args.rank % 8 != 0 || args.rope % 8 != 0 ||
      !Aligned(args.expanded) || !Aligned(args.records) || !Aligned(args.keys)) {
    return cudaErrorInvalidValue;
  }
  if (args.count == 0) return cudaSuccess;
  KeysKernel<<<Blocks(args.count * args.num_heads * (args.nope + args.rope) / 8), kThreads, 0, stream>>>(
      args);
  return cudaGetLastError();
}

cudaError_t MlaMergePartial(const MlaMergeArgs& args, cudaStream_t stream) {
  const int chunks = args.value / 8;
  // A row and head lies in one block, so that its lse is read before it is replaced.
  if (args.value % 8 != 0 || chunks == 0 || kThreads % chunks != 0 || !Aligned(args.out) ||
      !Aligned(args.more) || !Aligned(args.result)) {
    return cudaErrorInvalidValue;
  }
  const int64_t threads = args.rows * args.num_heads * chunks;
  if (threads == 0) return cudaSuccess;
  MergeKernel<<<static_cast<int>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t MlaFlashFillIndex(const MlaFlashRuns& runs, int count, const MlaFlashStrides& strides,
                              const MlaFlashIndex& index, cudaStream_t stream) {
  IndexKernel<<<1, 96, 0, stream>>>(runs, count, strides, index);
  return cudaGetLastError();
}

cudaError_t MlaFlashTransposeLse(const float* from, int64_t rows, int heads, float* to, cudaStream_t stream) {
  TransposeKernel<<<static_cast<int>((rows * heads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      from, rows, heads, to);
  return cudaGetLastError();
}

}  // namespace perigee::kernels::cuda
