#include "model/kimi_linear/options.h"

namespace perigee::model {

layers::KdaOptions KdaOf(const KimiLinearConfig& c, int64_t state_layer) {
  return {.num_heads = c.kda_num_heads,
          .head_dim = c.kda_head_dim,
          .gate_rank = c.kda_gate_rank(),
          .conv_width = c.short_conv_kernel_size,
          .norm_eps = static_cast<float>(c.rms_norm_eps),
          .state_layer = state_layer};
}

layers::MlaOptions MlaOf(const KimiLinearConfig& c, int64_t kv_layer) {
  return {.dims = {.num_heads = c.num_attention_heads,
                   .nope = c.qk_nope_head_dim,
                   .rope = c.qk_rope_head_dim,
                   .value = c.v_head_dim,
                   .rank = c.kv_lora_rank},
          .kv_layer = kv_layer};
}

layers::MoeOptions MoeOf(const KimiLinearConfig& c) {
  return {.num_experts = c.num_experts,
          .width = c.moe_intermediate_size,
          .shared_width = c.num_shared_experts * c.moe_intermediate_size,
          .router = {.top_k = c.num_experts_per_token,
                     .renormalize = c.moe_renormalize,
                     .scaling_factor = static_cast<float>(c.routed_scaling_factor)}};
}

}  // namespace perigee::model
