#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/mla/mla.h"
#include "layers/attention.h"
#include "layers/weight_scope.h"

namespace perigee::layers {

struct MlaOptions {
  kernels::MlaDims dims;
  int64_t kv_layer = 0;  // index of the layer in the latent pool
};

// Multi-head latent attention without positional encoding (kimi-linear specification 3.5). Prompt rows are
// evaluated materialised, generated rows absorbed: which of the two depends on the row's kind alone.
class MlaAttention final : public Attention {
 public:
  // weights: the scope "model.layers.{l}.self_attn.".
  MlaAttention(const MlaOptions& options, const WeightScope& weights);
  void Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const override;

 private:
  MlaOptions options_;
  kernels::PackedWeight in_proj_;  // rows q | kv_a (latent, shared key)
  kernels::MlaWeights kv_b_;
  std::vector<float> kv_a_layernorm_;  // [kv_lora_rank]
  kernels::PackedWeight o_proj_;
  std::vector<int64_t> o_parts_;
};

}  // namespace perigee::layers
