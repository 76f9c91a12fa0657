#include "engine/worker.h"

#include <utility>

namespace perigee::engine {
namespace {

cache::PagedKvCache MakeKvCache(const model::CacheShape& shape, int64_t num_blocks) {
  return {shape.kv_layers, num_blocks, shape.kv_width};
}

cache::RecurrentStatePool MakeStatePool(const model::CacheShape& shape, int64_t num_slots) {
  return {shape.state_layers, num_slots, shape.recurrent_floats, shape.conv_floats};
}

}  // namespace

Worker::Worker(std::unique_ptr<model::CausalLm> model, const WorkerConfig& config, comm::ProcessGrid grid)
    : model_(std::move(model)),
      grid_(std::move(grid)),
      parallel_(parallel::ContextOf(grid_)),
      kv_(MakeKvCache(model_->cache_shape(), config.num_blocks)),
      states_(MakeStatePool(model_->cache_shape(), config.num_slots)),
      pool_(config.threads),
      runner_(*model_, {.kv = &kv_, .states = &states_}, {.pool = &pool_, .workspace = &workspace_},
              parallel_, config.policy) {}

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
