#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "kernels/kda/kda.h"
#include "tensor/cache_view.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

namespace perigee::kernels {

// A KDA layer's own work for one new row of each sequence, between its projections: CausalConv1d of q, k and
// v, Sigmoid, KdaGate, KdaDecode and GatedRmsNorm in one call (kimi-linear specification 3.4.2 to 3.4.8).
struct KdaStepArgs {
  int64_t num_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  ConstMatrix qkv;          // [rows, num_heads * (2 * key_dim + value_dim)], q | k | v, before convolution
  ConstMatrixF taps;        // [conv width, as qkv]
  KdaDecayLogits decay;     // of the rows
  ConstMatrix beta_logits;  // [rows, num_heads]
  ConstMatrix output_gate;  // [rows, num_heads * value_dim], before its sigmoid
  std::span<const float> norm_weight;  // [value_dim]
  float norm_eps = 0;
  // Segment i is of row i: q_begin = i, and q_len = 1, or 0 for padding, whose slot is negative: such a row
  // touches no state, and what it leaves in `out` is zero where its output gate is finite.
  StepSpan<Segment> segments;
  StateView states;  // recurrent and conv, of the segments' slots
  Matrix out;        // [rows, num_heads * value_dim]
};

// On CUDA the launches depend on the number of segments alone, and slots are read from the device's copy: the
// call can be recorded and replayed for other sequences.
void KdaStep(const KernelContext& context, const KdaStepArgs& args);

// Room on the CPU of a step of up to `rows` rows.
void TallyKdaStep(WorkspaceTally& tally, int64_t rows, int64_t num_heads, int64_t key_dim, int64_t value_dim);

}  // namespace perigee::kernels
