#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tensor/segment.h"

namespace perigee::kernels::cuda {

// MLA attention on CUDA (kimi-linear specification 3.5); the meaning is that of kernels/mla/mla.h. Pointers
// are device pointers; strides count elements. Everything is ordered by `stream`, nothing synchronises with
// the host, and launch sizes depend on host values alone, so every call can be captured in a graph and
// replayed after the arrays of segments and block tables have changed. Errors: cudaErrorInvalidValue for a
// shape or alignment outside what is stated, before anything is launched; else the error of the launch.

// Latent records in pages: bf16 [blocks, block_tokens, rank + rope], the rank latent values first.
struct MlaPool {
  __nv_bfloat16* data = nullptr;
  int64_t blocks = 0;
  int block_tokens = 0;
  int rank = 0;  // multiple of 8
  int rope = 0;  // multiple of 8
};

// Segments of a step in device memory; row i of one sees keys [0, kv_len - q_len + i]. `count` is the
// launch's: padding of a captured step has q_len 0.
struct MlaRuns {
  const Segment* list = nullptr;
  int count = 0;
  const int32_t* block_tables = nullptr;
};

// Row i of a run becomes the record of position kv_len - q_len + i. latent [rows, rank], shared_key [rows,
// rope] bf16, 16-byte aligned, strides multiples of 8.
struct MlaAppendArgs {
  MlaPool pool;
  MlaRuns runs;
  const __nv_bfloat16* latent = nullptr;
  int64_t latent_stride = 0;
  const __nv_bfloat16* shared_key = nullptr;
  int64_t shared_key_stride = 0;
};
cudaError_t MlaAppendRecords(const MlaAppendArgs& args, cudaStream_t stream);

// Records [first_key, first_key + count) of one sequence as dense rows [count, rank + rope].
cudaError_t MlaGatherRecords(const MlaPool& pool, const int32_t* block_table, int64_t first_key,
                             int64_t count, __nv_bfloat16* records, cudaStream_t stream);

// Keys of all heads from expanded latents [count, num_heads, nope + value] (kv_b_proj's output) and the
// records' shared slice: keys [count, num_heads, nope + rope]. The values are read where they are.
struct MlaKeysArgs {
  const __nv_bfloat16* expanded = nullptr;
  const __nv_bfloat16* records = nullptr;  // [count, rank + rope]
  int64_t count = 0;
  int num_heads = 0;
  int nope = 0;  // multiples of 8, all of them
  int value = 0;
  int rank = 0;
  int rope = 0;
  __nv_bfloat16* keys = nullptr;
};
cudaError_t MlaAssembleKeys(const MlaKeysArgs& args, cudaStream_t stream);

// Adds attention over further keys to attention over some: with sums of exponentials e^a, e^b (natural
// logarithms a, b; minus infinity: over no keys), out = (out e^a + more e^b) / (e^a + e^b), lse = ln(e^a +
// e^b). Two shares of no keys give zero and minus infinity. out, more [rows, num_heads, value] dense, lse
// [rows, num_heads].
struct MlaMergeArgs {
  float* out = nullptr;
  float* lse = nullptr;
  const __nv_bfloat16* more = nullptr;
  const float* more_lse = nullptr;
  int64_t rows = 0;
  int num_heads = 0;
  int value = 0;  // multiple of 8
  // First share: `out` and `lse` are written, not read.
  bool first = false;
  // Last share: the result is rounded to here as well, if not null.
  __nv_bfloat16* result = nullptr;
};
cudaError_t MlaMergePartial(const MlaMergeArgs& args, cudaStream_t stream);

// Absorbed attention: q [rows, num_heads, rank + rope] (queries through W_UK), out [rows, num_heads, rank]
// contexts (to go through W_UV), all dense. Rows of no run, and rows that see no key, get zeros and minus
// infinity.
struct MlaDecodeArgs {
  MlaPool pool;
  MlaRuns runs;
  const __nv_bfloat16* q = nullptr;  // 16-byte aligned
  int rows = 0;
  int num_heads = 0;
  float scale = 0;  // of the scores
  __nv_bfloat16* out = nullptr;
  float* lse = nullptr;       // [rows, num_heads] natural log of the sums of exponentials, or null
  void* workspace = nullptr;  // MlaDecodeWorkspaceBytes, 256-byte aligned
};

// The Hopper form: rank 512, rope 64, block_tokens a multiple of 64, up to kMlaDecodeRows rows. The keys of
// all rows together are cut into one even share for each multiprocessor, so one long sequence fills the chip
// as well as many do; shares are merged in order of their keys.
inline constexpr int kMlaDecodeRows = 1024;
size_t MlaDecodeWorkspaceBytes(int rows, int num_heads);
cudaError_t MlaDecodeHopper(const MlaDecodeArgs& args, cudaStream_t stream);

// The plain form, for every rank and rope: a warp for each row and head. No workspace.
cudaError_t MlaDecodePlain(const MlaDecodeArgs& args, cudaStream_t stream);

// Attention of expanded keys without tensor cores, for every width: one run, causal from the bottom right
// (row i sees keys [0, k_len - q_len + i]) or over all keys.
struct MlaPlainArgs {
  const __nv_bfloat16* q = nullptr;  // [q_len, num_heads, qk], dense
  const __nv_bfloat16* k = nullptr;  // [k_len, num_heads, qk], dense
  const __nv_bfloat16* v = nullptr;  // [k_len, num_heads, value], strides below
  int64_t v_stride = 0;
  int64_t v_head_stride = 0;
  int64_t q_len = 0;
  int64_t k_len = 0;
  int num_heads = 0;
  int qk = 0;
  int value = 0;  // at most 1024
  bool causal = true;
  float scale = 0;
  __nv_bfloat16* out = nullptr;  // [q_len, num_heads, value], dense
  float* lse = nullptr;          // [q_len, num_heads], or null
};
cudaError_t MlaAttentionPlain(const MlaPlainArgs& args, cudaStream_t stream);

}  // namespace perigee::kernels::cuda
