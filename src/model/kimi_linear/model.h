#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "layers/decoder_layer.h"
#include "layers/embedding.h"
#include "model/causal_lm.h"
#include "model/kimi_linear/config.h"
#include "tensor/safetensors.h"

namespace perigee::model {

// KimiLinearForCausalLM: KDA and MLA layers over dense or expert feed-forward, untied head.
class KimiLinearModel final : public CausalLm {
 public:
  // The checkpoint has passed CheckCheckpoint for this configuration; the model keeps it (the embedding stays
  // mapped).
  KimiLinearModel(const KimiLinearConfig& config, Checkpoint checkpoint,
                  const std::function<void(uint64_t, uint64_t)>& progress);

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  CacheShape cache_shape() const override;
  void Forward(const kernels::KernelContext& context, const batch::ForwardBatch& batch, const Caches& caches,
               MatrixF hidden) const override;
  void Logits(const kernels::KernelContext& context, ConstMatrixF hidden, MatrixF logits) const override;

 private:
  KimiLinearConfig config_;
  Checkpoint checkpoint_;
  std::unique_ptr<layers::Embedding> embed_tokens_;
  std::vector<layers::DecoderLayer> layers_;
  std::unique_ptr<layers::LmHead> lm_head_;
};

}  // namespace perigee::model
