#include "layers/feed_forward.h"

#include "base/strings.h"

namespace perigee::layers {
namespace {

kernels::MlpWeights LoadMlp(const WeightScope& weights, const char* gate, const char* up, const char* down) {
  kernels::MlpWeights mlp;
  mlp.gate_up = weights.Linear({gate, up});
  mlp.down = weights.Linear({down});
  mlp.bounds = kernels::SumPartBounds(mlp.down.in());
  return mlp;
}

}  // namespace

DenseMlp::DenseMlp(const WeightScope& weights)
    : mlp_(LoadMlp(weights, "gate_proj", "up_proj", "down_proj")) {}

void DenseMlp::Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const {
  GatedMlp(step.kernels, mlp_, x, y);
}

Moe::Moe(const MoeOptions& options, const WeightScope& weights)
    : options_(options),
      gate_(weights.Linear({"gate"})),
      correction_bias_(weights.Floats("gate.e_score_correction_bias")) {
  const WeightScope experts = weights.In("experts");
  for (int64_t e = 0; e < options.num_experts; ++e) {
    experts_.experts.push_back(LoadMlp(experts.In(StrCat(e)), "w1", "w3", "w2"));
  }
  if (options.num_shared_experts > 0) {
    experts_.shared = LoadMlp(weights.In("shared_experts"), "gate_proj", "up_proj", "down_proj");
  }
}

void Moe::Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::Workspace::Scope scope(*k.workspace);
  const MatrixF logits(k.workspace->Floats(x.rows * options_.num_experts), x.rows, options_.num_experts);
  Gemm(k, x, gate_, logits);
  const kernels::Routing routing = RouteTopK(k, logits, correction_bias_, options_.router);
  MoeForward(k, experts_, routing, x, y);
}

}  // namespace perigee::layers
