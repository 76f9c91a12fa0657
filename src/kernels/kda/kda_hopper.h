#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace perigee::kernels {

// Kimi Delta Attention on Hopper (kimi-linear specification 3.4). The mathematics and the meaning of q, k, v,
// g and beta are those of kernels/kda/kda.h. All pointers are device pointers except the spans, which the
// launcher reads before it returns: their content travels in the kernel parameters, so a launch can be
// captured in a graph (the captured graph keeps the runs it was captured with). Everything is ordered by
// `stream`; nothing synchronises with the host. Errors: cudaErrorInvalidValue for a shape, a stride or a
// workspace outside what is stated, before anything is launched; else the error of the launch.

// One sequence's run of rows of a packed batch.
struct KdaCudaRun {
  int64_t q_begin = 0;  // first row
  int64_t q_len = 0;    // >= 0
  float* state =
      nullptr;  // [num_heads, key_dim, value_dim] fp32: the initial state, replaced by the final one
};

// A copy of the state of run `run` after its first `rows` rows; `rows` is a multiple of 64 in [64, q_len].
struct KdaCudaCheckpoint {
  int64_t run = 0;
  int64_t rows = 0;
  float* state = nullptr;  // [num_heads, key_dim, value_dim] fp32
};

// Where the log decays come from: either given (g), or formed inside as neg_exp_a * softplus(z + dt_bias).
struct KdaCudaDecay {
  const float* g = nullptr;          // [rows, num_heads * key_dim], <= 0; null: use z
  int64_t g_stride = 0;              // elements between rows, as every stride here
  const __nv_bfloat16* z = nullptr;  // [rows, num_heads * key_dim]
  int64_t z_stride = 0;
  const float* dt_bias = nullptr;    // [num_heads * key_dim]
  const float* neg_exp_a = nullptr;  // [num_heads]: -exp(A_log)
};

// A second stream and what joins it to the first: with it the factors of one pass are made while the chain of
// the pass before runs. Belongs to one host thread and one device; calls that use it may follow each other on
// one stream.
struct KdaCudaOverlap {
  cudaStream_t side = nullptr;
  cudaEvent_t begun = nullptr;     // the caller's stream has come to the call
  cudaEvent_t prepared = nullptr;  // the factors of a pass are there
  cudaEvent_t chaining = nullptr;  // the blocks of a chain have their multiprocessors
  cudaEvent_t chained = nullptr;   // a chain is over
};
cudaError_t KdaCudaCreateOverlap(KdaCudaOverlap* overlap);
void KdaCudaDestroyOverlap(KdaCudaOverlap* overlap);

struct KdaCudaPrefillArgs {
  int num_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  const __nv_bfloat16* q = nullptr;  // [rows, num_heads * key_dim], after convolution, not normalised
  int64_t q_stride = 0;
  const __nv_bfloat16* k = nullptr;  // [rows, num_heads * key_dim]
  int64_t k_stride = 0;
  const __nv_bfloat16* v = nullptr;  // [rows, num_heads * value_dim]
  int64_t v_stride = 0;
  KdaCudaDecay decay;
  const float* beta = nullptr;  // [rows, num_heads], in (0, 1)
  int64_t beta_stride = 0;
  std::span<const KdaCudaRun> runs;
  std::span<const KdaCudaCheckpoint> checkpoints;  // ascending by (run, rows)
  __nv_bfloat16* out = nullptr;                    // [rows, num_heads * value_dim]
  int64_t out_stride = 0;
  void* workspace = nullptr;  // 16-byte aligned; needed by the 128 x 128 form alone
  size_t workspace_bytes = 0;
  const KdaCudaOverlap* overlap = nullptr;  // null: one kernel after the other, as with many runs anyway
};

// Bytes that let one pass of the 128 x 128 form hold `chunks` chunks of 64 rows of every head. A call works
// with any multiple >= 1 of the bytes of one chunk; more chunks make fewer, longer launches.
size_t KdaCudaPrefillWorkspaceBytes(int num_heads, int64_t chunks);

// Prefill of packed runs. key_dim = value_dim = 128 with 16-byte aligned rows runs in chunks of 64 on the
// tensor cores; every other width in 1..256 row after row.
cudaError_t KdaCudaPrefill(const KdaCudaPrefillArgs& args, cudaStream_t stream);

// The row-after-row form alone, for any width in 1..256: the plain path, and short runs. At most 256
// checkpoints of one run.
cudaError_t KdaCudaRecurrent(const KdaCudaPrefillArgs& args, cudaStream_t stream);

// One token for each of `batch` sequences, all heads: convolution update and SiLU, L2 norms, gate, step, and
// the gated norm. key_dim = value_dim = 128, convolution width 4.
struct KdaCudaDecodeArgs {
  int batch = 0;
  int num_heads = 0;
  const __nv_bfloat16* q = nullptr;  // [batch, num_heads * 128], before convolution; k and v likewise
  const __nv_bfloat16* k = nullptr;
  const __nv_bfloat16* v = nullptr;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  const float* taps_q = nullptr;  // [4, num_heads * 128]: the last one multiplies the current row
  const float* taps_k = nullptr;
  const float* taps_v = nullptr;
  int64_t taps_stride = 0;
  // Slot of each batch row, `slots_stride` elements apart; negative: a padding row, whose output is zero and
  // which touches no slot.
  const int32_t* slots = nullptr;
  int64_t slots_stride = 1;
  // Slot s at + s * tail_slot_stride: [3, num_heads * 128], oldest first, rows tail_stride apart.
  __nv_bfloat16* tail_q = nullptr;
  __nv_bfloat16* tail_k = nullptr;
  __nv_bfloat16* tail_v = nullptr;
  int64_t tail_stride = 0;
  int64_t tail_slot_stride = 0;
  float* state = nullptr;  // slot s at + s * state_slot_stride: [num_heads, 128, 128]
  int64_t state_slot_stride = 0;
  const __nv_bfloat16* z = nullptr;  // [batch, num_heads * 128]: decay gate before its activation
  int64_t z_stride = 0;
  const float* dt_bias = nullptr;              // [num_heads * 128]
  const float* neg_exp_a = nullptr;            // [num_heads]
  const __nv_bfloat16* beta_logits = nullptr;  // [batch, num_heads]
  int64_t beta_stride = 0;
  const __nv_bfloat16* gate = nullptr;  // [batch, num_heads * 128]: output gate before its sigmoid
  int64_t gate_stride = 0;
  const float* norm_weight = nullptr;  // [128]
  float norm_eps = 1e-5f;
  __nv_bfloat16* out = nullptr;  // [batch, num_heads * 128]
  int64_t out_stride = 0;
};
cudaError_t KdaCudaDecode(const KdaCudaDecodeArgs& args, cudaStream_t stream);

// g = neg_exp_a * softplus(z + dt_bias) [rows, num_heads * key_dim] fp32, and, where `beta` is given,
// beta = sigmoid(beta_logits) [rows, num_heads] fp32.
struct KdaCudaGateArgs {
  int64_t rows = 0;
  int num_heads = 0;
  int key_dim = 0;
  const __nv_bfloat16* z = nullptr;
  int64_t z_stride = 0;
  const float* dt_bias = nullptr;
  const float* neg_exp_a = nullptr;
  float* g = nullptr;
  int64_t g_stride = 0;
  const __nv_bfloat16* beta_logits = nullptr;
  int64_t beta_logits_stride = 0;
  float* beta = nullptr;
  int64_t beta_stride = 0;
};
cudaError_t KdaCudaGate(const KdaCudaGateArgs& args, cudaStream_t stream);

}  // namespace perigee::kernels
