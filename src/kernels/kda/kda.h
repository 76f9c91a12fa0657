#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "tensor/cache_view.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

namespace perigee::kernels {

// Rows of a chunk of the prefill form. Each segment starts its own chunk grid at its first row, so a prompt
// cut at multiples of 64 gives the same bits as the whole.
inline constexpr int64_t kKdaChunk = 64;

// Log decays before their activation, KdaGate's arguments: g = neg_exp_a * softplus(z + dt_bias).
struct KdaDecayLogits {
  ConstMatrix z;                     // [rows, num_heads * key_dim]
  std::span<const float> dt_bias;    // [num_heads * key_dim]
  std::span<const float> neg_exp_a;  // [num_heads]: -exp(A_log)
};

// Kimi Delta Attention over packed sequences (kimi-linear specification 3.4.3 to 3.4.7). Per row and head,
// with qh = q / sqrt(sum q^2 + 1e-6) * key_dim^-0.5 and kh = k / sqrt(sum k^2 + 1e-6):
//   S = diag(exp(g)) S;  n = beta (v - S^T kh);  S = S + kh n^T;  out = S^T qh
// Any gate g <= 0 is exact: decays are products of numbers <= 1, never differences of sums.
struct KdaArgs {
  int64_t num_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  ConstMatrix q;               // [rows, num_heads * key_dim], after convolution, not normalised
  ConstMatrix k;               // [rows, num_heads * key_dim]
  ConstMatrix v;               // [rows, num_heads * value_dim]
  ConstMatrix g;               // [rows, num_heads * key_dim], log decay, <= 0, F32; no data: see decay
  KdaDecayLogits decay;        // read where g has no data
  ConstMatrix beta;            // [rows, num_heads], in (0, 1), F32
  StepSpan<Segment> segments;  // one a slot
  // Of the segments' slots, [num_heads, key_dim, value_dim] each: the initial state, replaced by the final
  // one.
  StateView states;
  Matrix out;  // [rows, num_heads * value_dim]
};

// Chunk-parallel form, for segments of any length.
void KdaPrefill(const KernelContext& context, const KdaArgs& args);

// Recurrent form, one row after another: for decode (q_len = 1), right for any length.
void KdaDecode(const KernelContext& context, const KdaArgs& args);

// Room of the two on the CPU, for up to `segments` segments. gate_rows: rows whose decays they form; 0 when g
// is given.
void TallyKdaPrefill(WorkspaceTally& tally, int64_t segments, int64_t gate_rows, int64_t num_heads,
                     int64_t key_dim, int64_t value_dim);
void TallyKdaDecode(WorkspaceTally& tally, int64_t segments, int64_t gate_rows, int64_t num_heads,
                    int64_t key_dim);

// g[r, c] = -exp(A_log[h]) * softplus(z[r, c] + dt_bias[c]), h the head of channel c; neg_exp_a holds
// -exp(A_log). z, g [rows, num_heads * key_dim]; g may be z.
void KdaGate(const KernelContext& context, ConstMatrix z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, Matrix g);

// The arguments with g, which is formed in the workspace of the caller's scope where it was not given: for
// what needs the same decays more than once.
KdaArgs WithGates(const KernelContext& context, KdaArgs args);

// y = sigmoid(x), elementwise; y may be x. (The write strength.)
void Sigmoid(const KernelContext& context, ConstMatrix x, Matrix y);

}  // namespace perigee::kernels
