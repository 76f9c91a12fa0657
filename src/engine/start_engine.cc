#include <algorithm>
#include <functional>
#include <memory>
#include <string>
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
#include "comm/process_ranks.h"
#include "engine/engine_config.h"
#include "engine/engine_impl.h"
#include "engine/plan_rates.h"
#include "engine/process_start.h"
#include "engine/process_team.h"
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

// The ranks that live in this process.
std::vector<int> LocalRanks(const ParallelOptions& o, const comm::ProcessRanks* processes) {
  if (processes != nullptr) return {processes->rank()};
  std::vector<int> ranks;
  for (int rank = 0; rank < o.tp; ++rank) ranks.push_back(rank);
  return ranks;
}

// Runs body(i) for each of `count` ranks of this process, on a thread of its own.
void OnEach(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& t : threads) t.join();
}

// Builds the models of the ranks. Progress is the first one's.
std::vector<std::unique_ptr<model::CausalLm>> BuildModels(const model::ModelFiles& files,
                                                          const EngineConfig& config,
                                                          const std::vector<int>& ranks) {
  std::vector<std::unique_ptr<model::CausalLm>> models(ranks.size());
  OnEach(ranks.size(), [&](size_t i) {
    SetTraceRank(ranks[i]);
    models[i] =
        files.Build(ShardOfRank(config.parallel, ranks[i]),
                    i == 0 ? config.load_progress : std::function<void(uint64_t, uint64_t)>(), config.device);
  });
  return models;
}

// The workers of this process's ranks with their groups; collective over all ranks.
StatusOr<std::vector<std::unique_ptr<Worker>>> MakeWorkers(
    std::vector<std::unique_ptr<model::CausalLm>> models, const std::vector<int>& ranks,
    const EngineConfig& config, const StepPolicy& policy, comm::ProcessRanks* processes) {
  const ParallelOptions& o = config.parallel;
  std::vector<std::unique_ptr<comm::Communicator>> threads_world;
  if (processes == nullptr && o.tp > 1) {
    PERIGEE_ASSIGN_OR_RETURN(threads_world, comm::MakeInProcessWorld("thread", o.tp));
  }
  std::vector<std::unique_ptr<Worker>> workers(ranks.size());
  std::vector<Status> failures(ranks.size());
  OnEach(ranks.size(), [&](size_t i) {
    comm::ProcessGrid grid;
    if (o.tp > 1) {
      comm::Communicator& world = processes == nullptr ? *threads_world[i] : processes->world();
      StatusOr<comm::ProcessGrid> made = comm::MakeProcessGrid(world, o.attn_cp, o.ep);
      if (!made.ok()) {
        failures[i] = made.status();
        return;
      }
      grid = std::move(made).value();
    }
    const int64_t threads =
        PartBegin(ranks[i] + 1, config.threads, o.tp) - PartBegin(ranks[i], config.threads, o.tp);
    workers[i] =
        std::make_unique<Worker>(std::move(models[i]),
                                 WorkerConfig{.num_blocks = config.max_total_tokens / cache::kBlockTokens,
                                              .num_slots = NumStateSlots(config),
                                              .threads = static_cast<int>(std::max<int64_t>(threads, 1)),
                                              .policy = policy,
                                              .device = config.device},
                                 std::move(grid));
  });
  for (const Status& s : failures) PERIGEE_RETURN_IF_ERROR(s);
  return workers;
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

// What is known before any weight is read.
struct Opened {
  ParallelPlan parallel;
  parallel::Rates rates;
  Machine machine;  // of this process
  std::unique_ptr<model::ModelFiles> files;
};

// What the pools are planned with: the memory of the device.
StatusOr<Machine> ReadMachineOf(Device device) {
  Machine machine = ReadMachine();
  if (device == Device::kCpu) return machine;
  PERIGEE_RETURN_IF_ERROR(device_memory::Open(0));
  // The rank's scratch memory is not for pools.
  const size_t free = device_memory::Ask().free;
  machine.available_bytes = free - std::min(free, kernels::DeviceContext::kScratchBytes);
  return machine;
}

StatusOr<Opened> Open(const EngineConfig& config) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(config));
  Opened opened;
  PERIGEE_ASSIGN_OR_RETURN(opened.parallel, ResolveParallel(config.parallel));
  PERIGEE_ASSIGN_OR_RETURN(opened.rates, ReadRates(config.parallel));
  PERIGEE_ASSIGN_OR_RETURN(opened.files, model::OpenModel(config.model_path));
  PERIGEE_RETURN_IF_ERROR(CheckModelCut(config.parallel, opened.files->sizes()));
  PERIGEE_ASSIGN_OR_RETURN(opened.machine, ReadMachineOf(config.device));
  return opened;
}

// What all processes must have in common, for them to compare and for a person to read.
std::string Fingerprint(const EngineConfig& config, const StatusOr<Opened>& opened) {
  if (!opened.ok()) return "";
  const ParallelOptions& o = config.parallel;
  const StepPolicy& policy = opened->parallel.policy;
  return StrCat("--tp ", o.tp, " --attn-cp-size ", o.attn_cp, " --ep-size ", o.ep, ", prompts in mode ",
                batch::StepModeName(opened->parallel.prefill_mode),
                opened->parallel.planned ? " or others" : "", " (", o.cp_strategy, ", form ",
                static_cast<int>(policy.attention_form), "), sizes ", config.context_length, " ",
                config.max_running_requests, " ", config.max_total_tokens, " ", config.chunked_prefill_size,
                ", a model of ", opened->files->weight_bytes(), " bytes");
}

// The ranks of this process, ready to run steps.
struct Loaded {
  EngineConfig config;  // with all values decided
  ModeChooser modes;
  std::vector<TokenId> stop_ids;
  std::vector<std::unique_ptr<Worker>> workers;
};

StatusOr<Loaded> Load(EngineConfig config, comm::ProcessRanks* processes) {
  StatusOr<Opened> opened = Open(config);
  StartAgreement agreement{.fingerprint = Fingerprint(config, opened)};
  if (opened.ok()) agreement.machine = opened->machine;
  if (processes != nullptr) {
    PERIGEE_RETURN_IF_ERROR(
        AgreeOnStart(*processes, opened.ok() ? Status::Ok() : opened.status(), &agreement));
    config.threads *= config.parallel.tp;  // given for each process, counted over all ranks
  }
  if (!opened.ok()) return opened.status();
  const model::ModelFiles& files = *opened->files;
  const ModelLimits limits = LimitsOf(files, config);
  PERIGEE_ASSIGN_OR_RETURN(config, Resolve(std::move(config), limits, agreement.machine));
  if (processes == nullptr || processes->rank() == 0) {
    for (const std::string& notice : opened->parallel.notices) LogWarning(notice);
    LogPrefixCache(config);
    LogMemory(config, limits);
  }
  const std::vector<int> ranks = LocalRanks(config.parallel, processes);
  PERIGEE_ASSIGN_OR_RETURN(auto workers, MakeWorkers(BuildModels(files, config, ranks), ranks, config,
                                                     opened->parallel.policy, processes));
  std::vector<TokenId> stop_ids = Union(files.stop_ids(), config.extra_stop_ids);
  const ParallelPlan& parallel = opened->parallel;
  ModeChooser modes(parallel.prefill_mode);
  if (parallel.planned) {
    modes = ModeChooser(files.shape(), opened->rates,
                        {config.parallel.tp, config.parallel.attn_cp, parallel.policy.strategy});
  }
  return Loaded{.config = std::move(config),
                .modes = std::move(modes),
                .stop_ids = std::move(stop_ids),
                .workers = std::move(workers)};
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> StartEngine(EngineConfig config, comm::ProcessRanks* processes) {
  PERIGEE_ASSIGN_OR_RETURN(Loaded loaded, Load(std::move(config), processes));
  std::unique_ptr<RankTeam> team;
  if (processes == nullptr) {
    team = std::make_unique<RankTeam>(std::move(loaded.workers));
  } else {
    team = std::make_unique<ProcessTeam>(std::move(loaded.workers[0]), processes);
  }
  return MakeEngine(std::move(team), loaded.config, std::move(loaded.modes), std::move(loaded.stop_ids));
}

Status FollowEngine(EngineConfig config, comm::ProcessRanks* processes) {
  PERIGEE_ASSIGN_OR_RETURN(const Loaded loaded, Load(std::move(config), processes));
  Worker& worker = *loaded.workers[0];
  const batch::PlanLimits limits{.vocab_size = worker.model().vocab_size(),
                                 .num_blocks = loaded.config.max_total_tokens / cache::kBlockTokens,
                                 .num_slots = NumStateSlots(loaded.config),
                                 .block_tokens = cache::kBlockTokens};
  return FollowPlans(worker, limits, *processes);
}

}  // namespace perigee::engine
