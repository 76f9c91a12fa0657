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

Worker::Worker(std::unique_ptr<model::CausalLm> model, const WorkerConfig& config)
    : model_(std::move(model)),
      kv_(MakeKvCache(model_->cache_shape(), config.num_blocks)),
      states_(MakeStatePool(model_->cache_shape(), config.num_slots)),
      pool_(config.threads),
      runner_(*model_, {.kv = &kv_, .states = &states_}, {.pool = &pool_, .workspace = &workspace_}) {}

std::vector<SpanResult> Worker::Run(const batch::BatchPlan& plan, const Sampler& sampler) {
  return runner_.Run(plan, sampler);
}

}  // namespace perigee::engine
