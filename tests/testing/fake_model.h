#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "kernels/gemm/gemm.h"
#include "model/causal_lm.h"

namespace perigee {

// A model whose logits are a hash of the whole history, read back from its caches: a wrong block, a slot that
// was not zeroed, a skipped or repeated token, a prompt token computed in decode form (or the reverse) or a
// cut off the grid of 64 changes every later logit. Rows of a step do not influence each other.
class FakeModel : public model::CausalLm {
 public:
  static constexpr int64_t kVocab = 61;

  struct Options {
    // Called at the start of every step, on the engine's thread.
    std::function<void(const batch::ForwardBatch&)> on_forward;
    // What Forward gives instead of running, from its second call on.
    Status failure;
    // The logits after this token are NaN.
    std::optional<int32_t> poison;
  };

  FakeModel() = default;
  explicit FakeModel(Options options) : options_(std::move(options)) {}

  int64_t vocab_size() const override { return kVocab; }
  int64_t hidden_size() const override { return 5; }
  model::VocabularyShare vocabulary() const override {
    return {.begin = 0, .end = kVocab, .part_bounds = kernels::SumPartBounds(kVocab)};
  }
  model::CacheShape cache_shape() const override;
  Status Forward(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
                 const parallel::StepLayout& layout, const parallel::ParallelContext& parallel,
                 const model::Caches& caches, Matrix hidden) const override;
  void Logits(const kernels::KernelContext& context, ConstMatrix hidden, Matrix logits) const override;

 private:
  Options options_;
  mutable int calls_ = 0;
};

}  // namespace perigee
