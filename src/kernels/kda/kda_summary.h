#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// What a run of rows does to any state that it may begin with: S_out = M S_in + B, for each head M [key_dim,
// key_dim] and B [key_dim, value_dim], fp32. B is the state that the run leaves behind when it begins with
// zero, M that of the identity under zero values (the delta rule is linear in the state).
struct KdaSummarySegment {
  int64_t q_begin = 0;          // first row
  int64_t q_len = 0;            // >= 1
  float* transition = nullptr;  // M [num_heads, key_dim, key_dim], written
  float* state = nullptr;       // B [num_heads, key_dim, value_dim], written
};

// Rows as in KdaArgs. A head's entries that decay to nothing become exactly zero: gates of -2000 make M zero.
struct KdaSummaryArgs {
  int64_t num_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  ConstMatrixF k;     // [rows, num_heads * key_dim], after convolution, not normalised
  ConstMatrixF v;     // [rows, num_heads * value_dim]
  ConstMatrixF g;     // [rows, num_heads * key_dim], log decay, <= 0
  ConstMatrixF beta;  // [rows, num_heads], in (0, 1)
  std::span<const KdaSummarySegment> segments;
};

void KdaSummary(const KernelContext& context, const KdaSummaryArgs& args);

// One run of rows in a fold. Without M its B is the state after it, whatever was before.
struct KdaFoldStep {
  const float* transition = nullptr;  // M [num_heads, key_dim, key_dim], or null
  const float* state = nullptr;       // B [num_heads, key_dim, value_dim]
};

// The state of some heads after the first `steps` steps.
struct KdaFoldOutput {
  int64_t steps = 0;  // >= 1
  int64_t head_begin = 0;
  int64_t head_end = 0;
  float* state = nullptr;  // [head_end - head_begin, key_dim, value_dim], written
};

// One sequence: its runs in order, of which the first has no M, and the states that are wanted.
struct KdaFoldChain {
  std::span<const KdaFoldStep> steps;
  std::span<const KdaFoldOutput> outputs;  // ascending `steps`
};

struct KdaFoldArgs {
  int64_t num_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  std::span<const KdaFoldChain> chains;
};

// S_i = M_i S_(i-1) + B_i, in the order of the steps. A run whose M is zero for a head starts anew from its
// B: what came before is neither read nor computed. An output's bits depend on the steps before it alone, not
// on which others are wanted.
void KdaFold(const KernelContext& context, const KdaFoldArgs& args);

// Room of the two, for up to `segments` segments and as many chains.
void TallyKdaSummary(WorkspaceTally& tally, int64_t segments, int64_t num_heads, int64_t key_dim,
                     int64_t value_dim);

}  // namespace perigee::kernels
