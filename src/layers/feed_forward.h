#pragma once

#include <cstdint>
#include <vector>

#include "kernels/moe/moe.h"
#include "layers/weight_scope.h"
#include "parallel/shard.h"
#include "tensor/matrix.h"
#include "tensor/parameter.h"

namespace perigee::layers {

// One layer's mixing over channels, with the weights of this rank's share: the result owes a sum over shares.
// Immutable after loading.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x: normed rows [rows, hidden]; y [rows, hidden]: the branch to add to the residual.
  virtual void Forward(const kernels::KernelContext& context, ConstMatrix x, Matrix y) const = 0;
};

// down(silu(gate(x)) * up(x)).
class DenseMlp final : public FeedForward {
 public:
  // weights: the scope "model.layers.{l}.mlp."; width: intermediate_size.
  DenseMlp(int64_t width, const Shard& shard, const WeightScope& weights);
  void Forward(const kernels::KernelContext& context, ConstMatrix x, Matrix y) const override;

 private:
  kernels::MlpWeights mlp_;
};

struct MoeOptions {
  int64_t num_experts = 0;
  int64_t width = 0;         // moe_intermediate_size
  int64_t shared_width = 0;  // of all shared experts together; 0: none
  kernels::RouterOptions router;
};

// Sigmoid-routed experts and a shared one (kimi-linear specification 3.6). Every rank routes all its rows.
class Moe final : public FeedForward {
 public:
  // weights: the scope "model.layers.{l}.block_sparse_moe.".
  Moe(const MoeOptions& options, const Shard& shard, const WeightScope& weights);
  void Forward(const kernels::KernelContext& context, ConstMatrix x, Matrix y) const override;

 private:
  MoeOptions options_;
  kernels::PackedWeight gate_;
  Parameter correction_bias_;  // [num_experts]
  kernels::MoeWeights experts_;
};

}  // namespace perigee::layers
