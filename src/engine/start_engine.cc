#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "cache/cache_budget.h"
#include "engine/engine_config.h"
#include "engine/engine_impl.h"
#include "model/registry.h"

namespace perigee::engine {
namespace {

ModelLimits LimitsOf(const model::LoadedModel& loaded) {
  const model::CacheShape shape = loaded.model->cache_shape();
  const cache::CacheCosts costs = cache::ComputeCacheCosts(
      shape.kv_layers, shape.kv_width, shape.state_layers, shape.recurrent_floats, shape.conv_floats);
  return {.max_context = loaded.max_context,
          .bytes_per_token = costs.per_token,
          .bytes_per_sequence = costs.per_sequence};
}

std::vector<TokenId> Union(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}

void LogMemory(const EngineConfig& config, const ModelLimits& limits) {
  const auto tokens = static_cast<uint64_t>(config.max_total_tokens);
  const auto sequences = static_cast<uint64_t>(config.max_running_requests);
  LogInfo(StrCat("latent pool: ", WithThousands(tokens), " tokens at ", HumanBytes(limits.bytes_per_token),
                 ", ", HumanBytes(tokens * limits.bytes_per_token), " when full; states: ",
                 WithThousands(sequences), " requests at ", HumanBytes(limits.bytes_per_sequence), ", ",
                 HumanBytes(sequences * limits.bytes_per_sequence),
                 " when full; longest request: ", WithThousands(static_cast<uint64_t>(config.context_length)),
                 " tokens; threads: ", config.threads));
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> StartEngine(EngineConfig config) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(config));
  PERIGEE_ASSIGN_OR_RETURN(model::LoadedModel loaded,
                           model::LoadModel(config.model_path, {.progress = config.load_progress}));
  const ModelLimits limits = LimitsOf(loaded);
  PERIGEE_ASSIGN_OR_RETURN(config, Resolve(std::move(config), limits, ReadMachine()));
  LogMemory(config, limits);
  std::vector<TokenId> stop_ids = Union(std::move(loaded.stop_ids), config.extra_stop_ids);
  return MakeEngine(std::move(loaded.model), config, std::move(stop_ids));
}

}  // namespace perigee::engine
