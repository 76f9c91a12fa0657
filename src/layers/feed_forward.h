#pragma once

#include <cstdint>
#include <vector>

#include "kernels/moe/moe.h"
#include "layers/step_context.h"
#include "layers/weight_scope.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// One layer's mixing over channels. Immutable after loading.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x: normalised rows [rows, hidden]; y [rows, hidden]: the branch to add to the residual.
  virtual void Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const = 0;
};

// down(silu(gate(x)) * up(x)).
class DenseMlp final : public FeedForward {
 public:
  // weights: the scope "model.layers.{l}.mlp.".
  explicit DenseMlp(const WeightScope& weights);
  void Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const override;

 private:
  kernels::MlpWeights mlp_;
};

struct MoeOptions {
  int64_t num_experts = 0;
  int64_t num_shared_experts = 0;
  kernels::RouterOptions router;
};

// Sigmoid-routed experts and a shared one (kimi-linear specification 3.6).
class Moe final : public FeedForward {
 public:
  // weights: the scope "model.layers.{l}.block_sparse_moe.".
  Moe(const MoeOptions& options, const WeightScope& weights);
  void Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const override;

 private:
  MoeOptions options_;
  kernels::PackedWeight gate_;
  std::vector<float> correction_bias_;  // [num_experts]
  kernels::MoeWeights experts_;
};

}  // namespace perigee::layers
