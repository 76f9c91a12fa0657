#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "layers/decoder_layer.h"
#include "layers/embedding.h"
#include "layers/weight_source.h"
#include "model/causal_lm.h"
#include "model/kimi_linear/config.h"
#include "model/kimi_linear/footprint.h"
#include "parallel/layout_plan.h"
#include "parallel/planner.h"
#include "parallel/shard.h"

namespace perigee::model {

// What the planner has to know.
parallel::ModelShape KimiLinearShape(const KimiLinearConfig& config);

// KimiLinearForCausalLM on one rank: KDA and MLA layers over dense or expert feed-forward, untied head.
class KimiLinearModel final : public CausalLm {
 public:
  // The source has every tensor that ExpectedTensors names; ranks share it (the embedding may stay mapped).
  // Weights are counted in `ledger` (may be null), which outlives them. prune_last_layer: rows whose results
  // nobody wants end in the last layer once their states and latents are written.
  KimiLinearModel(const KimiLinearConfig& config, std::shared_ptr<const layers::WeightSource> weights,
                  const parallel::Shard& shard, const std::function<void(uint64_t, uint64_t)>& progress,
                  Device device = Device::kCpu, bool prune_last_layer = true, MemoryLedger* ledger = nullptr);

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  VocabularyShare vocabulary() const override;
  CacheShape cache_shape() const override { return KimiLinearCacheShape(config_, shard_); }
  Status Forward(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
                 const parallel::StepLayout& layout, const parallel::ParallelContext& parallel,
                 const Caches& caches, Matrix hidden) const override;
  void Logits(const kernels::KernelContext& context, ConstMatrix hidden, Matrix logits) const override;

 private:
  Status RunLayers(const layers::StepContext& step, const layers::WantedRows& wanted,
                   parallel::RowStream& stream) const;
  Matrix Embed(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
               const parallel::StepLayout& layout, const parallel::LayerCommunicator& communicator) const;

  KimiLinearConfig config_;
  std::shared_ptr<const layers::WeightSource> weights_;
  parallel::Shard shard_;
  bool prune_last_layer_;
  std::unique_ptr<layers::Embedding> embed_tokens_;
  std::vector<layers::DecoderLayer> layers_;
  std::unique_ptr<layers::LmHead> lm_head_;
  std::vector<parallel::BlockKind> attention_kinds_;  // by layer
};

}  // namespace perigee::model
