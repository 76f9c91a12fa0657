#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/math.h"
#include "base/strings.h"
#include "base/trace.h"
#include "cache/cache_budget.h"
#include "comm/factory.h"
#include "comm/process_grid.h"
#include "engine/engine_config.h"
#include "engine/engine_impl.h"
#include "engine/plan_rates.h"
#include "kernels/device_context.h"
#include "model/registry.h"
#include "tensor/device_memory.h"

namespace perigee::engine {
namespace {

// Costs of all ranks of the process together.
ModelLimits LimitsOf(const model::ModelFiles& files, const EngineConfig& config) {
  const ParallelOptions& o = config.parallel;
  ModelLimits limits{.max_context = files.max_context(), .weight_bytes = files.weight_bytes()};
  for (int rank = 0; rank < o.tp; ++rank) {
    const model::CacheShape shape = files.cache_shape(ShardOfRank(o, rank));
    const cache::CacheCosts costs =
        cache::ComputeCacheCosts(shape.kv_layers, shape.kv_width, shape.state_layers, shape.recurrent_floats,
                                 shape.conv_floats, cache::CachedType(config.device));
    limits.bytes_per_token += costs.per_token;
    limits.bytes_per_sequence += costs.per_sequence;
  }
  return limits;
}

// Builds the model of every rank, each on a thread of its own. Progress is rank 0's.
std::vector<std::unique_ptr<model::CausalLm>> BuildModels(const model::ModelFiles& files,
                                                          const EngineConfig& config) {
  const ParallelOptions& o = config.parallel;
  std::vector<std::unique_ptr<model::CausalLm>> models(static_cast<size_t>(o.tp));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < o.tp; ++rank) {
    threads.emplace_back([&, rank] {
      SetTraceRank(rank);
      models[static_cast<size_t>(rank)] = files.Build(
          ShardOfRank(o, rank), rank == 0 ? config.load_progress : std::function<void(uint64_t, uint64_t)>(),
          config.device);
    });
  }
  for (std::thread& t : threads) t.join();
  return models;
}

// Workers of all ranks with their groups. Splitting is collective, so every rank does it on a thread of its
// own.
StatusOr<std::unique_ptr<RankTeam>> MakeTeam(std::vector<std::unique_ptr<model::CausalLm>> models,
                                             const EngineConfig& config, const StepPolicy& policy) {
  const ParallelOptions& o = config.parallel;
  const auto ranks = static_cast<int64_t>(models.size());
  std::vector<std::unique_ptr<Worker>> workers(models.size());
  const auto make = [&](int64_t rank, comm::ProcessGrid grid) {
    const int64_t threads =
        PartBegin(rank + 1, config.threads, ranks) - PartBegin(rank, config.threads, ranks);
    workers[static_cast<size_t>(rank)] =
        std::make_unique<Worker>(std::move(models[static_cast<size_t>(rank)]),
                                 WorkerConfig{.num_blocks = config.max_total_tokens / cache::kBlockTokens,
                                              .num_slots = NumStateSlots(config),
                                              .threads = static_cast<int>(std::max<int64_t>(threads, 1)),
                                              .policy = policy,
                                              .device = config.device},
                                 std::move(grid));
  };
  if (o.tp == 1) {
    make(0, {});
    return std::make_unique<RankTeam>(std::move(workers));
  }
  PERIGEE_ASSIGN_OR_RETURN(auto world, comm::MakeInProcessWorld("thread", o.tp));
  std::vector<Status> failures(models.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < o.tp; ++rank) {
    threads.emplace_back([&, rank] {
      StatusOr<comm::ProcessGrid> grid =
          comm::MakeProcessGrid(*world[static_cast<size_t>(rank)], o.attn_cp, o.ep);
      if (grid.ok()) {
        make(rank, std::move(grid).value());
      } else {
        failures[static_cast<size_t>(rank)] = grid.status();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const Status& s : failures) PERIGEE_RETURN_IF_ERROR(s);
  return std::make_unique<RankTeam>(std::move(workers));
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

void LogPrefixCache(const EngineConfig& config) {
  if (config.prefix_cache) {
    LogInfo(StrCat("prefix cache: up to ", config.state_snapshots, " states; prompts that share at least ",
                   cache::kBlockTokens, " tokens can share work"));
  } else if (config.chunked_prefill_size % cache::kBlockTokens != 0) {
    LogWarning(StrCat("prefix cache: off, because --chunked-prefill-size ", config.chunked_prefill_size,
                      " is not a multiple of ", cache::kBlockTokens));
  } else {
    LogInfo("prefix cache: off");
  }
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> StartEngine(EngineConfig config) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(config));
  PERIGEE_ASSIGN_OR_RETURN(const ParallelPlan parallel, ResolveParallel(config.parallel));
  PERIGEE_ASSIGN_OR_RETURN(const parallel::Rates rates, ReadRates(config.parallel));
  PERIGEE_ASSIGN_OR_RETURN(const std::unique_ptr<model::ModelFiles> files,
                           model::OpenModel(config.model_path));
  PERIGEE_RETURN_IF_ERROR(CheckModelCut(config.parallel, files->sizes()));
  for (const std::string& notice : parallel.notices) LogWarning(notice);
  const ModelLimits limits = LimitsOf(*files, config);
  Machine machine = ReadMachine();
  if (config.device != Device::kCpu) {
    PERIGEE_RETURN_IF_ERROR(device_memory::Open(0));
    // The rank's scratch memory is not for pools.
    const size_t free = device_memory::Ask().free;
    machine.available_bytes = free - std::min(free, kernels::DeviceContext::kScratchBytes);
  }
  PERIGEE_ASSIGN_OR_RETURN(config, Resolve(std::move(config), limits, machine));
  LogPrefixCache(config);
  LogMemory(config, limits);
  std::vector<TokenId> stop_ids = Union(files->stop_ids(), config.extra_stop_ids);
  PERIGEE_ASSIGN_OR_RETURN(std::unique_ptr<RankTeam> team,
                           MakeTeam(BuildModels(*files, config), config, parallel.policy));
  ModeChooser modes(parallel.prefill_mode);
  if (parallel.planned) {
    modes = ModeChooser(files->shape(), rates,
                        {config.parallel.tp, config.parallel.attn_cp, parallel.policy.strategy});
  }
  return MakeEngine(std::move(team), config, std::move(modes), std::move(stop_ids));
}

}  // namespace perigee::engine
