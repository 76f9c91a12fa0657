#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "batch/batch_plan.h"
#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"
#include "comm/process_grid.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "kernels/device_context.h"
#include "model/causal_lm.h"
#include "tensor/memory_ledger.h"

namespace perigee::engine {

struct WorkerConfig {
  int64_t num_blocks = 0;
  int64_t num_slots = 0;
  int threads = 1;  // >= 1, the calling thread included
  StepPolicy policy;
  Device device = Device::kCpu;          // where the model's weights are
  uint64_t workspace_bytes = 0;          // of the largest step; 0: it grows as it is used
  std::shared_ptr<MemoryLedger> ledger;  // counts model and pools; may be null
};

// One rank: its model, pools, scratch memory, threads and groups. Any number may live in one process. Run is
// called by one thread at a time.
class Worker {
 public:
  // A rank among others, or (no grid) the only one.
  Worker(std::unique_ptr<model::CausalLm> model, const WorkerConfig& config, comm::ProcessGrid grid = {});

  // On rank 0 with a sampler: one result per span. On other ranks sampler is null and the result empty. On an
  // error the rank has told the others.
  StatusOr<std::vector<SpanResult>> Run(const batch::BatchPlan& plan, const Sampler* sampler);
  // Makes the ranks' collectives fail; any thread.
  void Abort(const Status& reason);

  const model::CausalLm& model() const { return *model_; }
  // Pieces of kernels begun since the start. Any thread.
  const std::atomic<uint64_t>& work_begun() const { return pool_.items_begun(); }
  // Elements sent by this rank since the start, all groups.
  comm::Traffic traffic() const;

  // The most that each kind of memory ever took. Any thread; all zero without a ledger.
  MemoryBytes memory_peak() const { return ledger_ == nullptr ? MemoryBytes{} : ledger_->peak(); }

 private:
  const std::shared_ptr<MemoryLedger> ledger_;  // first: it outlives what it counts
  const std::unique_ptr<model::CausalLm> model_;
  const comm::ProcessGrid grid_;
  const parallel::ParallelContext parallel_;
  cache::PagedKvCache kv_;
  cache::RecurrentStatePool states_;
  ThreadPool pool_;
  kernels::DeviceContext device_;
  ModelRunner runner_;
};

}  // namespace perigee::engine
