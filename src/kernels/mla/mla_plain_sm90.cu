#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/mla/mla_sm90.h"

// Attention of every width without tensor cores, a warp for each row and head: what the fast forms do not
// take.
namespace perigee::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPerLane = 32;  // values of a lane: widths up to 1024

__device__ __forceinline__ float WarpSum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

// Keys of one row as the loop reads them: contiguous rows, or records through a block table.
struct Keys {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  int64_t k_stride;
  int64_t v_stride;
  const int32_t* block_table;  // null: contiguous
  int block_tokens;

  __device__ int64_t Place(int64_t key) const {
    if (block_table == nullptr) return key;
    return static_cast<int64_t>(block_table[key / block_tokens]) * block_tokens + key % block_tokens;
  }
};

// Softmax over keys [0, visible) with a running maximum; lane l holds values l, l + 32, ...
__device__ void Attend(const __nv_bfloat16* q, const Keys& keys, int64_t visible, int qk, int value,
                       float scale, __nv_bfloat16* out, float* lse) {
  const int lane = threadIdx.x % 32;
  float acc[kMaxPerLane] = {};
  float max = -INFINITY, sum = 0;
  for (int64_t key = 0; key < visible; ++key) {
    const int64_t place = keys.Place(key);
    const __nv_bfloat16* k = keys.k + place * keys.k_stride;
    const __nv_bfloat16* v = keys.v + place * keys.v_stride;
    float score = 0;
    for (int c = lane; c < qk; c += 32) score = fmaf(__bfloat162float(q[c]), __bfloat162float(k[c]), score);
    score = WarpSum(score) * scale;
    const float new_max = fmaxf(max, score);
    const float factor = expf(max - new_max);
    const float p = expf(score - new_max);
    max = new_max;
    sum = sum * factor + p;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) {
      if (i * 32 + lane < value) acc[i] = fmaf(p, __bfloat162float(v[i * 32 + lane]), acc[i] * factor);
    }
  }
  const float factor = visible > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    if (i * 32 + lane < value) out[i * 32 + lane] = __float2bfloat16(acc[i] * factor);
  }
  if (lse != nullptr && lane == 0) *lse = visible > 0 ? max + logf(sum) : -INFINITY;
}

__global__ void __launch_bounds__(kWarps * 32) AttentionKernel(MlaPlainArgs args) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= args.q_len * args.num_heads) return;
  const int64_t row = task / args.num_heads;
  const int64_t head = task % args.num_heads;
  const Keys keys{args.k + head * args.qk,
                  args.v + head * args.v_head_stride,
                  static_cast<int64_t>(args.num_heads) * args.qk,
                  args.v_stride,
                  nullptr,
                  0};
  const int64_t visible = args.causal ? max(args.k_len - args.q_len + row + 1, int64_t{0}) : args.k_len;
  Attend(args.q + task * args.qk, keys, visible, args.qk, args.value, args.scale,
         args.out + task * args.value, args.lse == nullptr ? nullptr : args.lse + task);
}

__global__ void __launch_bounds__(kWarps * 32) DecodeKernel(MlaDecodeArgs args) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= static_cast<int64_t>(args.rows) * args.num_heads) return;
  const int64_t row = task / args.num_heads;
  int64_t visible = 0;
  int32_t first_block = 0;
  for (int s = 0; s < args.runs.count; ++s) {
    const Segment& run = args.runs.list[s];
    const int64_t i = row - run.q_begin;
    if (i < 0 || i >= run.q_len) continue;
    visible = max(run.kv_len - run.q_len + i + 1, int64_t{0});
    first_block = run.first_block;
  }
  const int width = args.pool.rank + args.pool.rope;
  const Keys keys{args.pool.data,        args.pool.data, width, width, args.runs.block_tables + first_block,
                  args.pool.block_tokens};
  Attend(args.q + task * width, keys, visible, width, args.pool.rank, args.scale,
         args.out + task * args.pool.rank, args.lse == nullptr ? nullptr : args.lse + task);
}

unsigned Blocks(int64_t tasks) {
  return static_cast<unsigned>((tasks + kWarps - 1) / kWarps);
}

}  // namespace

cudaError_t MlaAttentionPlain(const MlaPlainArgs& args, cudaStream_t stream) {
  if (args.num_heads <= 0 || args.qk <= 0 || args.value <= 0 || args.value > 32 * kMaxPerLane) {
    return cudaErrorInvalidValue;
  }
  if (args.q_len == 0) return cudaSuccess;
  AttentionKernel<<<Blocks(args.q_len * args.num_heads), kWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t MlaDecodePlain(const MlaDecodeArgs& args, cudaStream_t stream) {
  if (args.num_heads <= 0 || args.pool.rank <= 0 || args.pool.rank > 32 * kMaxPerLane ||
      args.pool.block_tokens <= 0) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  DecodeKernel<<<Blocks(static_cast<int64_t>(args.rows) * args.num_heads), kWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace perigee::kernels::cuda
