#include "kernels/kda/kda_step.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/conv/conv.h"
#include "kernels/dispatch.h"
#include "kernels/kda/kda_cuda.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::kernels {
namespace {

void CheckArgs(const KdaStepArgs& a) {
  PERIGEE_CHECK(a.qkv.cols == a.num_heads * (2 * a.key_dim + a.value_dim));
  PERIGEE_CHECK(a.segments.size() == a.qkv.rows && a.out.rows == a.qkv.rows);
  PERIGEE_CHECK(a.decay.z.rows == a.qkv.rows && a.beta_logits.rows == a.qkv.rows);
  for (int64_t i = 0; i < a.segments.size(); ++i) {
    const Segment& s = a.segments.host[static_cast<size_t>(i)];
    PERIGEE_CHECK(s.q_begin == i && s.q_len == (s.slot < 0 ? 0 : 1));
  }
}

// One operation after the other.
void InTurn(const KernelContext& context, const KdaStepArgs& a, StepSpan<Segment> segments) {
  const Workspace::Scope scope(*context.workspace);
  const int64_t keys = a.num_heads * a.key_dim, values = a.num_heads * a.value_dim;
  const Matrix convolved = context.Room(a.qkv.rows, a.qkv.cols);
  CausalConv1d(context, a.qkv, a.taps, segments, a.states, convolved);
  const Matrix beta = context.Room(a.qkv.rows, a.num_heads, DType::kF32);
  Sigmoid(context, a.beta_logits, beta);
  ZeroRows(context, a.out);
  KdaDecode(context, {.num_heads = a.num_heads,
                      .key_dim = a.key_dim,
                      .value_dim = a.value_dim,
                      .q = convolved.Cols(0, keys),
                      .k = convolved.Cols(keys, keys),
                      .v = convolved.Cols(2 * keys, values),
                      .g = {},
                      .decay = a.decay,
                      .beta = beta,
                      .segments = segments,
                      .states = a.states,
                      .out = a.out});
  GatedRmsNorm(context, a.out, a.output_gate, a.norm_weight, a.norm_eps, a.out);
}

void OnCpu(const KernelContext& context, const KdaStepArgs& a) {
  std::vector<Segment> real(a.segments.host.begin(), a.segments.host.end());
  std::erase_if(real, [](const Segment& s) { return s.q_len == 0; });
  InTurn(context, a, real);
}

}  // namespace

void TallyKdaStep(WorkspaceTally& tally, int64_t rows, int64_t num_heads, int64_t key_dim,
                  int64_t value_dim) {
  const WorkspaceTally::Scope scope(tally);
  tally.Floats(rows * num_heads * (2 * key_dim + value_dim));
  tally.Floats(rows * num_heads);
  TallyKdaDecode(tally, rows, rows, num_heads, key_dim);
}

void KdaStep(const KernelContext& context, const KdaStepArgs& args) {
  CheckArgs(args);
  if (args.qkv.rows == 0) return;
  PERIGEE_DISPATCH(context, OnCpu(context, args),
                   if (!cuda::KdaStepFused(context, args)) InTurn(context, args, args.segments));
}

}  // namespace perigee::kernels
