#pragma once

#include <cstdint>
#include <vector>

#include "batch/batch_plan.h"
#include "batch/forward_batch.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "kernels/context.h"
#include "model/causal_lm.h"
#include "tensor/matrix.h"

namespace perigee::engine {

// What a step gave for one span.
struct SpanResult {
  TokenOutput token;                   // of a sampled span
  std::vector<float> target_logprobs;  // with prompt_logprobs: of the span's targets
  bool failed = false;                 // the model gave logits that are not finite
};

// Runs a plan on one rank: states zeroed where fresh, forward, logits, sampling. Holds nothing between steps.
// One thread.
class ModelRunner {
 public:
  // All outlive the runner.
  ModelRunner(const model::CausalLm& model, const model::Caches& caches,
              const kernels::KernelContext& context)
      : model_(model), caches_(caches), context_(context) {}

  // One result per span, in order.
  std::vector<SpanResult> Run(const batch::BatchPlan& plan, const Sampler& sampler);

 private:
  // Where a wanted row lies in the plan.
  struct RowSource {
    size_t span = 0;
    size_t row = 0;  // within the span
  };
  static std::vector<RowSource> LocateWantedRows(const batch::ForwardBatch& batch);
  void ReadRows(const batch::BatchPlan& plan, std::span<const RowSource> rows, ConstMatrixF hidden,
                const Sampler& sampler, std::vector<SpanResult>& results);

  const model::CausalLm& model_;
  const model::Caches caches_;
  const kernels::KernelContext context_;
};

}  // namespace perigee::engine
