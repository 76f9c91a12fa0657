#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "batch/batch_plan.h"
#include "batch/forward_batch.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "kernels/device_context.h"
#include "model/causal_lm.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/parallel_context.h"
#include "parallel/step_layout.h"
#include "tensor/matrix.h"

namespace perigee::engine {

// What a step gave for one span.
struct SpanResult {
  TokenOutput token;                   // of a sampled span
  std::vector<float> target_logprobs;  // with prompt_logprobs: of the span's targets
  bool failed = false;                 // the model gave logits that are not finite
};

// How prompt rows are spread and evaluated; the same on every rank.
struct StepPolicy {
  parallel::CpStrategy strategy = parallel::Zigzag;  // used by modes that shard rows
  parallel::AttentionForm attention_form = parallel::AttentionForm::kMaterialised;  // of prompt rows
};

// Runs a plan on one rank: states zeroed, restored and saved as it says, rows partitioned, forward, logits,
// sampling on rank 0. Holds nothing between steps. One thread.
class ModelRunner {
 public:
  // All references outlive the runner.
  ModelRunner(const model::CausalLm& model, const model::Caches& caches, kernels::DeviceContext& device,
              const parallel::ParallelContext& parallel, const StepPolicy& policy)
      : model_(model),
        caches_(caches),
        device_(device),
        context_(device.context()),
        parallel_(parallel),
        policy_(policy) {}

  // On rank 0 one result per span, in order; elsewhere nothing (sampler null). An error means that the ranks
  // lost each other.
  StatusOr<std::vector<SpanResult>> Run(const batch::BatchPlan& plan, const Sampler* sampler);

 private:
  // Memory that became free is poisoned, states are zeroed or copied.
  void PrepareCaches(const batch::BatchPlan& plan) const;
  // Where a wanted row lies in the plan.
  struct RowSource {
    size_t span = 0;
    size_t row = 0;  // within the span
  };
  static std::vector<RowSource> LocateWantedRows(const batch::ForwardBatch& batch);
  Status ReadRows(const batch::BatchPlan& plan, std::span<const RowSource> rows, ConstMatrix hidden,
                  const Sampler* sampler, std::vector<SpanResult>& results);

  const model::CausalLm& model_;
  const model::Caches caches_;
  kernels::DeviceContext& device_;
  const kernels::KernelContext& context_;
  // Logits of a device other than the CPU are looked at on the host.
  kernels::Workspace host_workspace_;
  const parallel::ParallelContext& parallel_;
  const StepPolicy policy_;
};

}  // namespace perigee::engine
