#include "engine/engine_impl.h"

#include <functional>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "cache/paged_kv_cache.h"
#include "engine/request_check.h"
#include "engine/step_loop.h"
#include "engine/worker.h"
#include "tensor/device_memory.h"

namespace perigee::engine {
namespace {

class EngineImpl : public Engine {
 public:
  EngineImpl(ModelInfo info, const scheduler::SchedulerConfig& scheduler, std::unique_ptr<RankTeam> team,
             ModeChooser modes, uint64_t seed)
      : info_(std::move(info)), loop_(scheduler, std::move(team), std::move(modes), info_.stop_ids, seed) {}

  StatusOr<RequestId> Submit(Request request, OutputCallback callback) override {
    PERIGEE_CHECK(callback != nullptr);
    PERIGEE_RETURN_IF_ERROR(CheckRequest(request, info_));
    PERIGEE_RETURN_IF_ERROR(loop_.health());
    return loop_.Submit(std::move(request), std::move(callback));
  }

  void Cancel(RequestId id) override { loop_.Cancel(id); }
  void FlushCache(std::function<void()> done) override {
    PERIGEE_CHECK(done != nullptr);
    loop_.FlushCache(std::move(done));
  }
  const ModelInfo& model_info() const override { return info_; }
  EngineStats stats() const override { return loop_.stats(); }
  std::vector<RankMemory> memory_peak() const override { return loop_.memory_peak(); }

 private:
  const ModelInfo info_;
  StepLoop loop_;
};

}  // namespace

std::unique_ptr<Engine> MakeEngine(std::unique_ptr<RankTeam> team, const EngineConfig& config,
                                   MemoryPlan memory, ModeChooser modes, std::vector<TokenId> stop_ids) {
  const int64_t num_blocks = config.max_total_tokens / cache::kBlockTokens;
  PERIGEE_CHECK(num_blocks * cache::kBlockTokens == config.max_total_tokens);
  ModelInfo info{.model_path = config.model_path,
                 .accelerator = config.device == Device::kCpu ? "" : device_memory::Name(),
                 .vocab_size = team->worker(0).model().vocab_size(),
                 .context_length = config.context_length,
                 .max_total_tokens = config.max_total_tokens,
                 .chunk = config.chunked_prefill_size,
                 .stop_ids = std::move(stop_ids),
                 .memory = std::move(memory)};
  const scheduler::SchedulerConfig scheduler{.max_running = config.max_running_requests,
                                             .chunk_size = config.chunked_prefill_size,
                                             .max_prefill_rows = config.max_prefill_tokens,
                                             .num_blocks = num_blocks,
                                             .num_snapshots = config.state_snapshots,
                                             .checkpoint_interval = config.state_checkpoint_interval,
                                             .name_freed = cache::kPoisonFreed};
  return std::make_unique<EngineImpl>(std::move(info), scheduler, std::move(team), std::move(modes),
                                      config.seed);
}

std::unique_ptr<Engine> MakeEngine(std::unique_ptr<model::CausalLm> model, const EngineConfig& config,
                                   std::vector<TokenId> stop_ids) {
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::make_unique<Worker>(
      std::move(model), WorkerConfig{.num_blocks = config.max_total_tokens / cache::kBlockTokens,
                                     .num_slots = NumStateSlots(config),
                                     .threads = config.threads}));
  return MakeEngine(std::make_unique<RankTeam>(std::move(workers)), config, {}, batch::StepMode::kTp,
                    std::move(stop_ids));
}

}  // namespace perigee::engine
