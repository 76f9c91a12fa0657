#include "engine/worker.h"

#include <utility>

#include "cache/cache_budget.h"

namespace perigee::engine {
namespace {

cache::PagedKvCache MakeKvCache(const model::CacheShape& shape, const WorkerConfig& config) {
  return {shape.kv_layers, config.num_blocks,
          shape.kv_width,  cache::CachedType(config.device),
          config.device,   {config.ledger.get(), MemoryKind::kLatents}};
}

cache::RecurrentStatePool MakeStatePool(const model::CacheShape& shape, const WorkerConfig& config) {
  return {shape.state_layers,
          config.num_slots,
          shape.recurrent_floats,
          shape.conv_floats,
          cache::CachedType(config.device),
          config.device,
          {config.ledger.get(), MemoryKind::kStates}};
}

}  // namespace

Worker::Worker(std::unique_ptr<model::CausalLm> model, const WorkerConfig& config, comm::ProcessGrid grid)
    : ledger_(config.ledger),
      model_(std::move(model)),
      grid_(std::move(grid)),
      parallel_(parallel::ContextOf(grid_)),
      kv_(MakeKvCache(model_->cache_shape(), config)),
      states_(MakeStatePool(model_->cache_shape(), config)),
      pool_(config.threads),
      device_(config.device, pool_, config.workspace_bytes, {ledger_.get(), MemoryKind::kWorkspace}),
      runner_(*model_, {.kv = &kv_, .states = &states_}, device_, parallel_, config.policy) {}

StatusOr<std::vector<SpanResult>> Worker::Run(const batch::BatchPlan& plan, const Sampler* sampler) {
  StatusOr<std::vector<SpanResult>> results = runner_.Run(plan, sampler);
  if (!results.ok()) Abort(results.status());
  return results;
}

void Worker::Abort(const Status& reason) {
  for (comm::Communicator* group : {grid_.tp.get(), grid_.cp.get(), grid_.attn_tp.get()}) {
    if (group != nullptr) group->Abort(reason);
  }
}

comm::Traffic Worker::traffic() const {
  comm::Traffic sum;
  for (const comm::Communicator* group : {grid_.tp.get(), grid_.cp.get(), grid_.attn_tp.get()}) {
    if (group == nullptr) continue;
    for (size_t c = 0; c < comm::kNumCollectives; ++c) {
      sum.elements[c] += group->traffic().elements[c];
      sum.calls[c] += group->traffic().calls[c];
    }
  }
  return sum;
}

}  // namespace perigee::engine
