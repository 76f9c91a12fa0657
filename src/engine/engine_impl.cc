#include "engine/engine_impl.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "cache/paged_kv_cache.h"
#include "engine/request_check.h"
#include "engine/step_loop.h"
#include "engine/worker.h"

namespace perigee::engine {
namespace {

class EngineImpl : public Engine {
 public:
  EngineImpl(ModelInfo info, const scheduler::SchedulerConfig& scheduler, std::unique_ptr<Worker> worker,
             uint64_t seed)
      : info_(std::move(info)), loop_(scheduler, std::move(worker), info_.stop_ids, seed) {}

  StatusOr<RequestId> Submit(Request request, OutputCallback callback) override {
    PERIGEE_CHECK(callback != nullptr);
    PERIGEE_RETURN_IF_ERROR(CheckRequest(request, info_));
    return loop_.Submit(std::move(request), std::move(callback));
  }

  void Cancel(RequestId id) override { loop_.Cancel(id); }
  const ModelInfo& model_info() const override { return info_; }
  EngineStats stats() const override { return loop_.stats(); }

 private:
  const ModelInfo info_;
  StepLoop loop_;
};

}  // namespace

std::unique_ptr<Engine> MakeEngine(std::unique_ptr<model::CausalLm> model, const EngineConfig& config,
                                   std::vector<TokenId> stop_ids) {
  const int64_t num_blocks = config.max_total_tokens / cache::kBlockTokens;
  PERIGEE_CHECK(num_blocks * cache::kBlockTokens == config.max_total_tokens);
  ModelInfo info{.model_path = config.model_path,
                 .vocab_size = model->vocab_size(),
                 .context_length = config.context_length,
                 .max_total_tokens = config.max_total_tokens,
                 .stop_ids = std::move(stop_ids)};
  const scheduler::SchedulerConfig scheduler{.max_running = config.max_running_requests,
                                             .chunk_size = config.chunked_prefill_size,
                                             .num_blocks = num_blocks};
  auto worker =
      std::make_unique<Worker>(std::move(model), WorkerConfig{.num_blocks = num_blocks,
                                                              .num_slots = config.max_running_requests,
                                                              .threads = config.threads});
  return std::make_unique<EngineImpl>(std::move(info), scheduler, std::move(worker), config.seed);
}

}  // namespace perigee::engine
