#include "kernels/kda/kda.h"

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/kda/kda_cpu.h"
#include "kernels/kda/kda_cuda.h"

namespace perigee::kernels {
namespace {

void CheckArgs(const KdaArgs& a) {
  PERIGEE_CHECK(a.num_heads > 0 && a.key_dim > 0 && a.value_dim > 0);
  const int64_t keys = a.num_heads * a.key_dim;
  const int64_t values = a.num_heads * a.value_dim;
  PERIGEE_CHECK(a.q.cols == keys && a.k.cols == keys);
  PERIGEE_CHECK((a.g.data == nullptr ? a.decay.z : a.g).cols == keys);
  PERIGEE_CHECK(a.v.cols == values && a.out.cols == values && a.beta.cols == a.num_heads);
  PERIGEE_CHECK(a.segments.empty() || a.states.recurrent != nullptr);
  for (const Segment& s : a.segments.host) {
    PERIGEE_CHECK(s.q_begin >= 0 && s.q_len >= 0 && s.q_begin + s.q_len <= a.q.rows);
  }
}

// Every head of every segment is a task of its own.
template <typename RunHead>
void ForHeads(const KernelContext& context, const KdaArgs& given, int64_t scratch_floats,
              const RunHead& run) {
  const Workspace::Scope scope(*context.workspace);
  const KdaArgs a = WithGates(context, given);
  const cpu::KdaArgs args{.num_heads = a.num_heads,
                          .key_dim = a.key_dim,
                          .value_dim = a.value_dim,
                          .q = a.q.As<float>(),
                          .k = a.k.As<float>(),
                          .v = a.v.As<float>(),
                          .g = a.g.As<float>(),
                          .beta = a.beta.As<float>(),
                          .out = a.out.As<float>()};
  ForTasks(context, a.segments.size() * a.num_heads, scratch_floats, [&](int64_t task, float* scratch) {
    const Segment& s = a.segments.host[static_cast<size_t>(task / a.num_heads)];
    run(args, cpu::KdaSegment{s.q_begin, s.q_len, a.states.Recurrent(s.slot)}, task % a.num_heads, scratch);
  });
}

}  // namespace

void TallyKdaPrefill(WorkspaceTally& tally, int64_t segments, int64_t gate_rows, int64_t num_heads,
                     int64_t key_dim, int64_t value_dim) {
  const WorkspaceTally::Scope scope(tally);
  tally.Floats(gate_rows * num_heads * key_dim);
  tally.Tasks(segments * num_heads, cpu::KdaChunkScratchFloats(key_dim, value_dim));
}

void TallyKdaDecode(WorkspaceTally& tally, int64_t segments, int64_t gate_rows, int64_t num_heads,
                    int64_t key_dim) {
  const WorkspaceTally::Scope scope(tally);
  tally.Floats(gate_rows * num_heads * key_dim);
  tally.Tasks(segments * num_heads, cpu::KdaDecodeScratchFloats(key_dim));
}

void KdaPrefill(const KernelContext& context, const KdaArgs& args) {
  CheckArgs(args);
  PERIGEE_DISPATCH(
      context,
      ForHeads(context, args, cpu::KdaChunkScratchFloats(args.key_dim, args.value_dim), cpu::KdaPrefillHead),
      cuda::KdaPrefill(context, args));
}

void KdaDecode(const KernelContext& context, const KdaArgs& args) {
  CheckArgs(args);
  PERIGEE_DISPATCH(context,
                   ForHeads(context, args, cpu::KdaDecodeScratchFloats(args.key_dim), cpu::KdaDecodeHead),
                   cuda::KdaDecode(context, args));
}

void KdaGate(const KernelContext& context, ConstMatrix z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, Matrix g) {
  const auto heads = static_cast<int64_t>(neg_exp_a.size());
  PERIGEE_CHECK(z.rows == g.rows && z.cols == g.cols && static_cast<int64_t>(dt_bias.size()) == z.cols);
  PERIGEE_CHECK(heads > 0 && z.cols % heads == 0);
  PERIGEE_DISPATCH(context, cpu::KdaGate(context, z.As<float>(), dt_bias, neg_exp_a, g.As<float>()),
                   cuda::KdaGate(context, z, dt_bias, neg_exp_a, g));
}

KdaArgs WithGates(const KernelContext& context, KdaArgs args) {
  if (args.g.data != nullptr) return args;
  const Matrix g = context.Room(args.decay.z.rows, args.decay.z.cols, DType::kF32);
  KdaGate(context, args.decay.z, args.decay.dt_bias, args.decay.neg_exp_a, g);
  args.g = g;
  return args;
}

void Sigmoid(const KernelContext& context, ConstMatrix x, Matrix y) {
  PERIGEE_CHECK(x.rows == y.rows && x.cols == y.cols);
  PERIGEE_DISPATCH(context, cpu::Sigmoid(context, x.As<float>(), y.As<float>()),
                   cuda::Sigmoid(context, x, y));
}

}  // namespace perigee::kernels
