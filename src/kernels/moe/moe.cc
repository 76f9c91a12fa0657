#include "kernels/moe/moe.h"

#include "base/check.h"
#include "kernels/activation/activation.h"
#include "kernels/dispatch.h"
#include "kernels/moe/moe_cpu.h"
#include "kernels/moe/moe_cuda.h"

namespace perigee::kernels {

void ListExperts(MoeWeights& weights) {
  if (weights.experts.empty()) return;
  const KernelContext place{.device = weights.experts[0].gate_up.device()};
  PERIGEE_DISPATCH(place, static_cast<void>(0), cuda::ListExperts(weights));
}

Routing RouteTopK(const KernelContext& context, ConstMatrix logits, std::span<const float> bias,
                  const RouterOptions& options) {
  PERIGEE_CHECK(logits.cols == static_cast<int64_t>(bias.size()));
  PERIGEE_CHECK(options.top_k > 0 && options.top_k <= logits.cols);
  const int64_t count = logits.rows * options.top_k;
  const Routing routing{.top_k = options.top_k,
                        .experts = {context.workspace->Ints(count), static_cast<size_t>(count)},
                        .weights = {context.workspace->Floats(count), static_cast<size_t>(count)}};
  PERIGEE_DISPATCH(context, cpu::RouteTopK(context, logits.As<float>(), bias, options, routing),
                   cuda::RouteTopK(context, logits.As<float>(), bias, options, routing));
  return routing;
}

void GatedMlp(const KernelContext& context, const MlpWeights& weights, ConstMatrix x, Matrix y) {
  const Workspace::Scope scope(*context.workspace);
  const int64_t width = weights.down.in();
  const Matrix gate_up = context.Room(x.rows, 2 * width);
  Gemm(context, x, weights.gate_up, gate_up);
  const Matrix gate = gate_up.Cols(0, width);
  SiluMul(context, gate, gate_up.Cols(width, width), gate);
  GemmInParts(context, gate, weights.down, weights.bounds, y);
}

void TallyGatedMlp(WorkspaceTally& tally, int64_t rows, int64_t hidden, int64_t width, int64_t parts) {
  const WorkspaceTally::Scope scope(tally);
  tally.Floats(rows * 2 * width);
  TallyGemm(tally, rows, 2 * width, hidden);
  TallyGemm(tally, rows, hidden, width, parts);
}

void MoeForward(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                ConstMatrix x, Matrix y) {
  PERIGEE_CHECK(!weights.experts.empty() && x.rows == y.rows && x.cols == y.cols);
  PERIGEE_CHECK(static_cast<int64_t>(routing.experts.size()) == x.rows * routing.top_k);
  PERIGEE_DISPATCH(context, cpu::MoeForward(context, weights, routing, x.As<float>(), y.As<float>()),
                   cuda::MoeForward(context, weights, routing, x, y));
}

}  // namespace perigee::kernels
