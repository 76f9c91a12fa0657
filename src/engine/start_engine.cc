#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "base/trace.h"
#include "comm/factory.h"
#include "comm/process_grid.h"
#include "comm/process_ranks.h"
#include "engine/engine_config.h"
#include "engine/engine_impl.h"
#include "engine/memory_budget.h"
#include "engine/plan_rates.h"
#include "engine/process_start.h"
#include "engine/process_team.h"
#include "kernels/cuda_library.h"
#include "model/registry.h"

namespace perigee::engine {
namespace {

using Ledgers = std::vector<std::shared_ptr<MemoryLedger>>;  // of the ranks of this process

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
                                                          const std::vector<int>& ranks,
                                                          const Ledgers& ledgers) {
  std::vector<std::unique_ptr<model::CausalLm>> models(ranks.size());
  OnEach(ranks.size(), [&](size_t i) {
    SetTraceRank(ranks[i]);
    models[i] = files.Build(ShardOfRank(config.parallel, ranks[i]),
                            i == 0 ? config.load_progress : std::function<void(uint64_t, uint64_t)>(),
                            config.device, ledgers[i].get());
  });
  return models;
}

// The workers of this process's ranks with their groups; collective over all ranks.
StatusOr<std::vector<std::unique_ptr<Worker>>> MakeWorkers(const model::ModelFiles& files,
                                                           const EngineConfig& config,
                                                           const MemoryPlan& memory, const StepPolicy& policy,
                                                           comm::ProcessRanks* processes) {
  const ParallelOptions& o = config.parallel;
  const std::vector<int> ranks = LocalRanks(o, processes);
  Ledgers ledgers;
  for (size_t i = 0; i < ranks.size(); ++i) ledgers.push_back(std::make_shared<MemoryLedger>());
  std::vector<std::unique_ptr<model::CausalLm>> models = BuildModels(files, config, ranks, ledgers);
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
    workers[i] = std::make_unique<Worker>(
        std::move(models[i]),
        WorkerConfig{.num_blocks = config.max_total_tokens / cache::kBlockTokens,
                     .num_slots = NumStateSlots(config),
                     .threads = RankThreads(config, ranks[i]),
                     .policy = policy,
                     .device = config.device,
                     .workspace_bytes = memory.ranks[static_cast<size_t>(ranks[i])].workspace,
                     .ledger = ledgers[i]},
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

void LogMemory(const MemoryPlan& memory) {
  std::istringstream lines(MemoryText(memory));
  for (std::string line; std::getline(lines, line);) LogInfo(line);
}

void WarnOfOddChunks(const EngineConfig& config) {
  if (config.chunked_prefill_size % cache::kBlockTokens == 0) return;
  LogWarning(StrCat("prefix cache: off, because --chunked-prefill-size ", config.chunked_prefill_size,
                    " is not a multiple of ", cache::kBlockTokens));
}

StatusOr<std::unique_ptr<model::ModelFiles>> OpenFiles(const EngineConfig& config) {
  if (!config.shape.empty()) return model::OpenDummyShape(config.shape, config.seed);
  if (config.dummy_weights) return model::OpenDummyModel(config.model_path, config.seed);
  return model::OpenModel(config.model_path);
}

// What is known before any weight is read.
struct Opened {
  ParallelPlan parallel;
  GivenRates rates;
  Machine machine;  // of this process
  std::unique_ptr<model::ModelFiles> files;
};

// The special tokens come after the others: where the counts differ, every one of them is another.
Status CheckTokenizer(const EngineConfig& config, int64_t vocab_size) {
  if (config.tokenizer_ids == 0 || config.tokenizer_ids == vocab_size) return Status::Ok();
  // Random weights mean nothing: ids that the tokenizer does not know have no text.
  if (config.dummy_weights && config.tokenizer_ids < vocab_size) return Status::Ok();
  return InvalidArgument(StrCat(config.model_path, ": the tokenizer has ", config.tokenizer_ids,
                                " ids, special tokens included, but vocab_size in config.json is ",
                                vocab_size, ": they must be as many; the files are not of one model"));
}

StatusOr<Opened> Open(const EngineConfig& config) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(config));
  Opened opened;
  PERIGEE_ASSIGN_OR_RETURN(opened.parallel, ResolveParallel(config.parallel));
  PERIGEE_ASSIGN_OR_RETURN(opened.rates, ReadRates(config.parallel));
  PERIGEE_ASSIGN_OR_RETURN(opened.files, OpenFiles(config));
  const model::ModelSizes sizes = opened.files->footprint().sizes();
  PERIGEE_RETURN_IF_ERROR(CheckTokenizer(config, sizes.vocab_size));
  PERIGEE_RETURN_IF_ERROR(CheckModelCut(config.parallel, sizes));
  PERIGEE_ASSIGN_OR_RETURN(opened.machine, ReadMachine(config.device));
  if (config.device != Device::kCpu) PERIGEE_RETURN_IF_ERROR(kernels::cuda::CheckLibraries());
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
                ", a model of ", opened->files->footprint().weight_bytes({}), " bytes");
}

// The ranks of this process, ready to run steps.
struct Loaded {
  EngineConfig config;  // with all values decided
  MemoryPlan memory;
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
  const ParallelPlan& parallel = opened->parallel;
  const ModelCosts costs =
      CostsOf(files.footprint(), parallel, config, processes == nullptr ? 1 : config.parallel.tp);
  PERIGEE_ASSIGN_OR_RETURN(Sized sized, DecideSizes(config, costs, agreement.machine));
  if (processes == nullptr || processes->rank() == 0) {
    for (const std::string& notice : parallel.notices) LogWarning(notice);
    WarnOfOddChunks(sized.config);
    LogMemory(sized.memory);
  }
  PERIGEE_RETURN_IF_ERROR(CheckFits(config, sized, costs, agreement.machine));
  config = std::move(sized.config);
  PERIGEE_ASSIGN_OR_RETURN(auto workers,
                           MakeWorkers(files, config, sized.memory, parallel.policy, processes));
  std::vector<TokenId> stop_ids = Union(files.stop_ids(), config.extra_stop_ids);
  ModeChooser modes(parallel.prefill_mode);
  if (parallel.planned) {
    modes = ModeChooser(files.shape(), ToPlannerRates(opened->rates),
                        {config.parallel.tp, config.parallel.attn_cp, parallel.policy.strategy});
  }
  return Loaded{.config = std::move(config),
                .memory = std::move(sized.memory),
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
  return MakeEngine(std::move(team), loaded.config, std::move(loaded.memory), std::move(loaded.modes),
                    std::move(loaded.stop_ids));
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
