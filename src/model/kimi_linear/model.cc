#include "model/kimi_linear/model.h"

#include "base/strings.h"
#include "base/trace.h"
#include "layers/kda_attention.h"
#include "layers/mla_attention.h"

namespace perigee::model {
namespace {

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
          .num_shared_experts = c.num_shared_experts,
          .router = {.top_k = c.num_experts_per_token,
                     .renormalize = c.moe_renormalize,
                     .scaling_factor = static_cast<float>(c.routed_scaling_factor)}};
}

}  // namespace

KimiLinearModel::KimiLinearModel(const KimiLinearConfig& config, Checkpoint checkpoint,
                                 const std::function<void(uint64_t, uint64_t)>& progress)
    : config_(config), checkpoint_(std::move(checkpoint)) {
  layers::LoadProgress counted{0, checkpoint_.TotalBytes(), progress};
  const layers::WeightScope root(checkpoint_, counted);
  const layers::WeightScope model = root.In("model");
  embed_tokens_ = std::make_unique<layers::Embedding>(model.In("embed_tokens"));
  int64_t state_layer = 0;
  int64_t kv_layer = 0;
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const layers::WeightScope scope = model.In("layers").In(StrCat(l));
    std::unique_ptr<layers::Attention> attention;
    if (config_.is_kda[static_cast<size_t>(l)]) {
      attention =
          std::make_unique<layers::KdaAttention>(KdaOf(config_, state_layer++), scope.In("self_attn"));
    } else {
      attention = std::make_unique<layers::MlaAttention>(MlaOf(config_, kv_layer++), scope.In("self_attn"));
    }
    std::unique_ptr<layers::FeedForward> feed_forward;
    if (config_.is_moe[static_cast<size_t>(l)]) {
      feed_forward = std::make_unique<layers::Moe>(MoeOf(config_), scope.In("block_sparse_moe"));
    } else {
      feed_forward = std::make_unique<layers::DenseMlp>(scope.In("mlp"));
    }
    layers_.emplace_back(scope, static_cast<float>(config_.rms_norm_eps), std::move(attention),
                         std::move(feed_forward));
  }
  lm_head_ = std::make_unique<layers::LmHead>(root, static_cast<float>(config_.rms_norm_eps));
}

CacheShape KimiLinearModel::cache_shape() const {
  const int64_t width = config_.kda_num_heads * config_.kda_head_dim;
  return {.kv_layers = config_.NumMlaLayers(),
          .kv_width = config_.kv_lora_rank + config_.qk_rope_head_dim,
          .state_layers = config_.NumKdaLayers(),
          .recurrent_floats = width * config_.kda_head_dim,
          .conv_floats = (config_.short_conv_kernel_size - 1) * 3 * width};
}

void KimiLinearModel::Forward(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
                              const Caches& caches, MatrixF hidden) const {
  const kernels::Workspace::Scope scope(*context.workspace);
  const layers::StepContext step{context, batch, *caches.kv, *caches.states};
  const int64_t rows = batch.NumRows();
  const MatrixF residual(context.workspace->Floats(rows * config_.hidden_size), rows, config_.hidden_size);
  embed_tokens_->Forward(context, batch.token_ids, residual);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const TraceScope trace("layer", static_cast<long>(l));
    layers_[l].Forward(step, residual);
  }
  lm_head_->FinalNorm(context, residual, batch.wanted_rows, hidden);
}

void KimiLinearModel::Logits(const kernels::KernelContext& context, ConstMatrixF hidden,
                             MatrixF logits) const {
  lm_head_->Logits(context, hidden, logits);
}

}  // namespace perigee::model
