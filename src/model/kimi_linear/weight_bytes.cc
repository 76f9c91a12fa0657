#include <initializer_list>
#include <string>
#include <string_view>

#include "base/math.h"
#include "base/strings.h"
#include "model/kimi_linear/footprint.h"

namespace perigee::model {
namespace {

using kernels::PackedWeight;
using parallel::Shard;

// Adds up what the layers of one rank hold, in the order in which KimiLinearModel loads them.
class WeightCounter {
 public:
  WeightCounter(const KimiLinearConfig& config, const Shard& shard, Device device, const DTypeOf& dtype_of)
      : c_(config), shard_(shard), on_cpu_(device == Device::kCpu), dtype_of_(dtype_of) {}

  uint64_t Count() {
    if (!on_cpu_) {
      bytes_ += static_cast<uint64_t>(c_.vocab_size * c_.hidden_size) *
                DTypeBytes(dtype_of_("model.embed_tokens.weight"));
    }
    for (int64_t l = 0; l < c_.num_hidden_layers; ++l) {
      const auto layer = static_cast<size_t>(l);
      const std::string prefix = StrCat("model.layers.", l, ".");
      Floats(2 * c_.hidden_size);  // norms
      prefix_ = prefix + "self_attn.";
      c_.is_kda[layer] ? Kda() : Mla();
      prefix_ = prefix + (c_.is_moe[layer] ? "block_sparse_moe." : "mlp.");
      c_.is_moe[layer] ? Moe() : Mlp("", "gate_proj", "up_proj", "down_proj", Share(c_.intermediate_size));
    }
    prefix_ = "";
    Floats(c_.hidden_size);
    Product({"lm_head"}, Share(c_.vocab_size), c_.hidden_size);
    return bytes_;
  }

 private:
  int64_t Share(int64_t size) const { return shard_.Of(size).size(); }
  void Floats(int64_t count) { bytes_ += static_cast<uint64_t>(count) * sizeof(float); }

  // A product whose rows are pieces of these linear layers.
  void Product(std::initializer_list<std::string_view> pieces, int64_t out, int64_t in) {
    if (!on_cpu_) {
      bytes_ += static_cast<uint64_t>(out * in) * DTypeBytes(DType::kBF16);
      return;
    }
    bool bf16 = true;
    for (const std::string_view name : pieces)
      bf16 = bf16 && dtype_of_(StrCat(prefix_, name, ".weight")) == DType::kBF16;
    bytes_ += PackedWeight::PackedBytes(out, in, bf16);
  }

  void Kda() {
    KdaHeads(Share(c_.kda_num_heads));
    if (shard_.holds_kda) KdaHeads(shard_.Held(c_.kda_num_heads).size());
    Floats(c_.kda_head_dim);
  }

  void KdaHeads(int64_t heads) {
    const int64_t width = heads * c_.kda_head_dim;
    const int64_t rank = c_.kda_gate_rank();
    Product({"q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"}, 3 * width + heads + 2 * rank,
            c_.hidden_size);
    Product({"f_b_proj"}, width, rank);
    Product({"g_b_proj"}, width, rank);
    Product({"o_proj"}, c_.hidden_size, width);
    Floats(3 * width * c_.short_conv_kernel_size + width + heads);
  }

  void Mla() {
    const int64_t rank = c_.kv_lora_rank;
    for (int64_t s = shard_.first_held; s < shard_.first_held + shard_.num_held; ++s) {
      const int64_t heads = shard_.Of(c_.num_attention_heads, s).size();
      Product({"q_proj"}, heads * c_.qk_head_dim(), c_.hidden_size);
      // As it expands latents and, on the CPU, head by head as it reads them.
      Product({"kv_b_proj"}, heads * (c_.qk_nope_head_dim + c_.v_head_dim), rank);
      for (int64_t h = 0; on_cpu_ && h < heads; ++h) {
        Product({"kv_b_proj"}, rank, c_.qk_nope_head_dim);
        Product({"kv_b_proj"}, c_.v_head_dim, rank);
      }
    }
    Product({"kv_a_proj_with_mqa"}, rank + c_.qk_rope_head_dim, c_.hidden_size);
    Floats(rank);
    Product({"o_proj"}, c_.hidden_size, shard_.Held(c_.num_attention_heads).size() * c_.v_head_dim);
  }

  void Mlp(std::string_view folder, std::string_view gate, std::string_view up, std::string_view down,
           int64_t width) {
    Product({StrCat(folder, gate), StrCat(folder, up)}, 2 * width, c_.hidden_size);
    Product({StrCat(folder, down)}, c_.hidden_size, width);
  }

  void Moe() {
    const parallel::ExpertShare held = parallel::ExpertsOf(shard_, c_.num_experts, c_.moe_intermediate_size);
    Product({"gate"}, c_.num_experts, c_.hidden_size);
    Floats(c_.num_experts);
    for (int64_t e = held.experts.begin; e < held.experts.end; ++e)
      Mlp(StrCat("experts.", e, "."), "w1", "w3", "w2", held.width.size());
    const int64_t shared = c_.num_shared_experts * c_.moe_intermediate_size;
    if (shared > 0) Mlp("shared_experts.", "gate_proj", "up_proj", "down_proj", Share(shared));
  }

  const KimiLinearConfig& c_;
  const Shard& shard_;
  const bool on_cpu_;
  const DTypeOf& dtype_of_;
  std::string prefix_;
  uint64_t bytes_ = 0;
};

}  // namespace

uint64_t KimiLinearWeightBytes(const KimiLinearConfig& config, const parallel::Shard& shard, Device device,
                               const DTypeOf& dtype_of) {
  return WeightCounter(config, shard, device, dtype_of).Count();
}

}  // namespace perigee::model
