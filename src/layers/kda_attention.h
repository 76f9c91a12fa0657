#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "layers/attention.h"
#include "layers/weight_scope.h"
#include "parallel/shard.h"

namespace perigee::layers {

struct KdaOptions {
  int64_t num_heads = 0;   // of the whole model
  int64_t head_dim = 0;    // key width = value width
  int64_t gate_rank = 0;   // inner width of f_a/f_b and g_a/g_b
  int64_t conv_width = 0;  // short_conv_kernel_size
  float norm_eps = 0;
  int64_t state_layer = 0;  // index of the layer in the recurrent-state pool
};

// Kimi Delta Attention (kimi-linear specification 3.4): projections, short convolution, gates, delta rule,
// gated norm. Works on all rows of the step with the heads of its share; the result owes a sum over shares.
class KdaAttention final : public Attention {
 public:
  // weights: the scope "model.layers.{l}.self_attn.".
  KdaAttention(const KdaOptions& options, const Shard& shard, const WeightScope& weights);
  Status Forward(const StepContext& step, ConstMatrixF x, std::optional<std::span<const int64_t>> chosen,
                 MatrixF y) const override;

  // Outputs of the fused input projection on a rank: q, k and v channels; b; f_a and g_a.
  std::vector<int64_t> InProjSplit() const;

 private:
  void Mix(const StepContext& step, ConstMatrixF qkv, ConstMatrixF g, ConstMatrixF beta, MatrixF out) const;

  KdaOptions options_;
  Range heads_;                    // of the share
  int64_t width_;                  // heads of the share * head_dim
  kernels::PackedWeight in_proj_;  // rows q | k | v | b of the share, then f_a | g_a whole
  kernels::PackedWeight f_b_proj_;
  kernels::PackedWeight g_b_proj_;
  kernels::PackedWeight o_proj_;  // columns of the share
  std::vector<int64_t> o_parts_;
  std::vector<float> conv_taps_;  // [conv_width, 3 * width]: q | k | v channels
  std::vector<float> dt_bias_;    // [width]
  std::vector<float> neg_exp_a_;  // [heads]: -exp(A_log)
  std::vector<float> o_norm_;     // [head_dim]
};

}  // namespace perigee::layers
