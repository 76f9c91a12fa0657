#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "model/kimi_linear/config.h"

namespace perigee::model {
namespace {

// Collects expected tensors under a name prefix.
class TensorList {
 public:
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }
  void Add(std::string_view name, std::vector<int64_t> shape, ShapeRule rule = ShapeRule::kExact) {
    tensors_.push_back({StrCat(prefix_, name), std::move(shape), rule});
  }
  std::vector<ExpectedTensor> Take() { return std::move(tensors_); }

 private:
  std::string prefix_;
  std::vector<ExpectedTensor> tensors_;
};

void AddKda(const KimiLinearConfig& c, TensorList& out) {
  const int64_t width = c.kda_num_heads * c.kda_head_dim;
  for (std::string_view name : {"q", "k", "v"}) {
    out.Add(StrCat(name, "_proj.weight"), {width, c.hidden_size});
    out.Add(StrCat(name, "_conv1d.weight"), {width, 1, c.short_conv_kernel_size}, ShapeRule::kWithoutOnes);
  }
  out.Add("f_a_proj.weight", {c.kda_gate_rank(), c.hidden_size});
  out.Add("f_b_proj.weight", {width, c.kda_gate_rank()});
  out.Add("dt_bias", {width}, ShapeRule::kElementCount);
  out.Add("A_log", {1, 1, c.kda_num_heads, 1}, ShapeRule::kElementCount);
  out.Add("b_proj.weight", {c.kda_num_heads, c.hidden_size});
  out.Add("g_a_proj.weight", {c.kda_gate_rank(), c.hidden_size});
  out.Add("g_b_proj.weight", {width, c.kda_gate_rank()});
  out.Add("o_norm.weight", {c.kda_head_dim});
  out.Add("o_proj.weight", {c.hidden_size, width});
}

void AddMla(const KimiLinearConfig& c, TensorList& out) {
  const int64_t heads = c.num_attention_heads;
  out.Add("q_proj.weight", {heads * c.qk_head_dim(), c.hidden_size});
  out.Add("kv_a_proj_with_mqa.weight", {c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size});
  out.Add("kv_a_layernorm.weight", {c.kv_lora_rank});
  out.Add("kv_b_proj.weight", {heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank});
  out.Add("o_proj.weight", {c.hidden_size, heads * c.v_head_dim});
}

void AddGatedMlp(std::string_view prefix, int64_t hidden, int64_t width, TensorList& out) {
  out.Add(StrCat(prefix, "gate_proj.weight"), {width, hidden});
  out.Add(StrCat(prefix, "up_proj.weight"), {width, hidden});
  out.Add(StrCat(prefix, "down_proj.weight"), {hidden, width});
}

void AddMoe(const KimiLinearConfig& c, TensorList& out) {
  out.Add("gate.weight", {c.num_experts, c.hidden_size});
  out.Add("gate.e_score_correction_bias", {c.num_experts});
  for (int64_t e = 0; e < c.num_experts; ++e) {
    out.Add(StrCat("experts.", e, ".w1.weight"), {c.moe_intermediate_size, c.hidden_size});
    out.Add(StrCat("experts.", e, ".w2.weight"), {c.hidden_size, c.moe_intermediate_size});
    out.Add(StrCat("experts.", e, ".w3.weight"), {c.moe_intermediate_size, c.hidden_size});
  }
  if (c.num_shared_experts > 0)
    AddGatedMlp("shared_experts.", c.hidden_size, c.num_shared_experts * c.moe_intermediate_size, out);
}

}  // namespace

std::vector<ExpectedTensor> ExpectedTensors(const KimiLinearConfig& c) {
  TensorList out;
  out.SetPrefix("");
  out.Add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  out.Add("model.norm.weight", {c.hidden_size});
  out.Add("lm_head.weight", {c.vocab_size, c.hidden_size});
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string layer = StrCat("model.layers.", l, ".");
    out.SetPrefix(layer);
    out.Add("input_layernorm.weight", {c.hidden_size});
    out.Add("post_attention_layernorm.weight", {c.hidden_size});
    out.SetPrefix(layer + "self_attn.");
    if (c.is_kda[static_cast<size_t>(l)]) {
      AddKda(c, out);
    } else {
      AddMla(c, out);
    }
    if (c.is_moe[static_cast<size_t>(l)]) {
      out.SetPrefix(layer + "block_sparse_moe.");
      AddMoe(c, out);
    } else {
      out.SetPrefix(layer + "mlp.");
      AddGatedMlp("", c.hidden_size, c.intermediate_size, out);
    }
  }
  return out.Take();
}

ModelCounts CountModel(const KimiLinearConfig& c) {
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  const uint64_t hidden = u(c.hidden_size), kda_layers = u(c.NumKdaLayers()),
                 mla_layers = u(c.NumMlaLayers());
  const uint64_t layers = u(c.num_hidden_layers), moe_layers = u(c.NumMoeLayers());
  const uint64_t head = u(c.vocab_size) * hidden;

  const uint64_t kda_heads = u(c.kda_num_heads), kda_width = kda_heads * u(c.kda_head_dim);
  const uint64_t rank = u(c.kda_gate_rank());
  const uint64_t kda_gemm = 4 * kda_width * hidden + 2 * rank * (hidden + kda_width) + kda_heads * hidden;
  const uint64_t kda_float = kda_width + kda_heads;  // dt_bias and A_log
  const uint64_t kda_rest = 3 * kda_width * u(c.short_conv_kernel_size) + kda_float + u(c.kda_head_dim);

  const uint64_t heads = u(c.num_attention_heads), latent = u(c.kv_lora_rank);
  const uint64_t latent_width = latent + u(c.qk_rope_head_dim);
  const uint64_t mla_gemm = (heads * u(c.qk_head_dim()) + latent_width + heads * u(c.v_head_dim)) * hidden +
                            heads * u(c.qk_nope_head_dim + c.v_head_dim) * latent;

  const uint64_t dense = 3 * hidden * u(c.intermediate_size);
  const uint64_t expert = 3 * hidden * u(c.moe_intermediate_size);
  const uint64_t router = u(c.num_experts) * hidden;
  const uint64_t shared = u(c.num_shared_experts), chosen = u(c.num_experts_per_token);

  ModelCounts n;
  n.parameters = 2 * head + kda_layers * (kda_gemm + kda_rest) + mla_layers * (mla_gemm + latent) +
                 (layers - moe_layers) * dense +
                 moe_layers * ((u(c.num_experts) + shared) * expert + router + u(c.num_experts)) +
                 (2 * layers + 1) * hidden;
  n.active_gemm_weights = head + kda_layers * kda_gemm + mla_layers * mla_gemm +
                          (layers - moe_layers) * dense + moe_layers * ((chosen + shared) * expert + router);
  n.bf16_checkpoint_bytes = 2 * (n.parameters + kda_layers * kda_float);
  n.latent_floats_per_token = mla_layers * latent_width;
  n.state_floats_per_sequence = kda_layers * kda_width * u(c.kda_head_dim);
  n.conv_floats_per_sequence = kda_layers * 3 * kda_width * u(c.short_conv_kernel_size - 1);
  return n;
}

}  // namespace perigee::model
