#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint_check.h"

namespace perigee::model {

// config.json of a Kimi-Linear folder, checked. Member names are the file's keys. Layer indices are 0-based.
struct KimiLinearConfig {
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t intermediate_size = 0;  // dense MLP layers
  int64_t vocab_size = 0;
  int64_t model_max_length = 0;
  double rms_norm_eps = 1e-5;

  // linear_attn_config
  int64_t kda_num_heads = 0;
  int64_t kda_head_dim = 0;  // key width = value width
  int64_t short_conv_kernel_size = 0;
  std::vector<bool> is_kda;  // [num_hidden_layers], from the 1-based lists

  int64_t num_attention_heads = 0;  // MLA
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;

  std::vector<bool> is_moe;  // [num_hidden_layers]
  int64_t num_experts = 0;
  int64_t num_experts_per_token = 0;
  int64_t num_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  double routed_scaling_factor = 1;
  bool moe_renormalize = true;

  // Of this file alone; may be empty, and an id beyond vocab_size never ends anything.
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;
  int32_t pad_token_id = -1;

  std::vector<std::string> unknown_keys;  // not used by us and not known to be harmless: warned about once

  // The low-rank gates' inner width: the KDA head width, in the checkpoint's own shapes.
  int64_t kda_gate_rank() const { return kda_head_dim; }
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t NumKdaLayers() const;
  int64_t NumMlaLayers() const;
  int64_t NumMoeLayers() const;
};

// `where` names the file in errors, which read "DIR/config.json: key: what is wrong, what is accepted".
StatusOr<KimiLinearConfig> ParseKimiLinearConfig(std::string_view json, const std::string& where);
// The same for folder/config.json.
StatusOr<KimiLinearConfig> ReadKimiLinearConfig(const std::string& folder);

// The end-of-sequence ids of generation_config.json (one or a list): none when the file or the key is absent.
StatusOr<std::vector<int32_t>> ParseGenerationStopIds(std::string_view json, int64_t vocab_size,
                                                      const std::string& where);
StatusOr<std::vector<int32_t>> ReadGenerationStopIds(const std::string& folder, int64_t vocab_size);

// The published configuration of a named shape ("kimi-linear-48b"), for planning without weights. Unknown
// names list the known ones.
StatusOr<KimiLinearConfig> NamedShape(std::string_view name);

// Every tensor that the model needs, in no particular order of use.
std::vector<ExpectedTensor> ExpectedTensors(const KimiLinearConfig& config);

// Sizes that follow from the configuration alone.
struct ModelCounts {
  uint64_t parameters = 0;  // all
  uint64_t active_gemm_weights =
      0;  // multiplied per token: the chosen and shared experts, the head, not the embedding
  uint64_t bf16_checkpoint_bytes = 0;      // BF16 but for A_log and dt_bias
  uint64_t latent_floats_per_token = 0;    // all MLA layers
  uint64_t state_floats_per_sequence = 0;  // all KDA layers, recurrent
  uint64_t conv_floats_per_sequence = 0;
};
ModelCounts CountModel(const KimiLinearConfig& config);

}  // namespace perigee::model
