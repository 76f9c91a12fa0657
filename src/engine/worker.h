#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "batch/batch_plan.h"
#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "kernels/context.h"
#include "model/causal_lm.h"

namespace perigee::engine {

struct WorkerConfig {
  int64_t num_blocks = 0;
  int64_t num_slots = 0;
  int threads = 1;  // >= 1, the calling thread included
};

// One rank: its model, pools, scratch memory and threads. Any number may live in one process. Run is called
// by one thread at a time.
class Worker {
 public:
  Worker(std::unique_ptr<model::CausalLm> model, const WorkerConfig& config);

  std::vector<SpanResult> Run(const batch::BatchPlan& plan, const Sampler& sampler);

 private:
  const std::unique_ptr<model::CausalLm> model_;
  cache::PagedKvCache kv_;
  cache::RecurrentStatePool states_;
  ThreadPool pool_;
  kernels::Workspace workspace_;
  ModelRunner runner_;
};

}  // namespace perigee::engine
