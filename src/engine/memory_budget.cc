#include "engine/memory_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/strings.h"
#include "cache/cache_budget.h"
#include "cache/paged_kv_cache.h"
#include "engine/logit_gather.h"
#include "kernels/context.h"
#include "kernels/device_context.h"

namespace perigee::engine {
namespace {

constexpr double kDefaultFraction = 0.8;
constexpr uint64_t kTooMuch = std::numeric_limits<uint64_t>::max() / 4;

uint64_t Times(uint64_t bytes, int64_t count) {
  return std::min(CheckedMul(bytes, static_cast<uint64_t>(count)).value_or(kTooMuch), kTooMuch);
}

// As ModelRunner and the model under it run the largest steps of both kinds. A device keeps its rows in half
// the bytes, and its kernels take room of their own: it gets as much as the CPU would, and no less than what
// its context takes anyway.
uint64_t WorkspaceBytes(const model::ModelFootprint& shape, const ParallelPlan& plan,
                        const EngineConfig& config, int rank) {
  const ParallelOptions& o = config.parallel;
  const parallel::Shard shard = ShardOfRank(o, rank);
  const int64_t vocab = shape.sizes().vocab_size;
  kernels::WorkspaceTally tally(RankThreads(config, rank));
  using batch::StepMode;
  std::vector<StepMode> modes = {StepMode::kDecode, plan.prefill_mode};
  if (plan.planned) modes = {StepMode::kDecode, StepMode::kTp, StepMode::kHead, StepMode::kState};
  for (const StepMode mode : modes) {
    const bool prefill = mode != StepMode::kDecode;
    const int64_t rows = prefill ? config.max_prefill_tokens : config.max_running_requests;
    const model::StepShape step{
        .phase = prefill ? batch::Phase::kPrefill : batch::Phase::kDecode,
        .mode = mode,
        .form = plan.policy.attention_form,
        .tp = o.tp,
        .attn_cp = o.attn_cp,
        .rows = rows,
        .sequences = std::min(config.max_running_requests, rows),
        // Two a prompt by the policy (where it branches and where it ends), and those
        // at multiples of the interval.
        .snapshots = prefill ? std::min(config.state_snapshots, 2 * config.max_running_requests +
                                                                    rows / config.state_checkpoint_interval)
                             : 0,
        .keys = config.context_length};
    const kernels::WorkspaceTally::Scope scope(tally);
    tally.Floats(rows * shape.hidden_size());
    shape.TallyForward(shard, step, tally);
    TallyLogits(tally, std::min(rows, kLogitRows), shape.hidden_size(), shard.Of(vocab).size(), vocab, o.tp,
                rank == 0);
  }
  if (config.device == Device::kCpu) return tally.peak_bytes();
  return std::max<uint64_t>(tally.peak_bytes(), kernels::DeviceContext::kScratchBytes);
}

// What everything else leaves of the budget for pools.
uint64_t Left(const MemoryPlan& memory) {
  uint64_t fixed = memory.embedding_bytes * static_cast<uint64_t>(memory.processes);
  for (const RankMemory& r : memory.ranks) fixed += r.weights + r.workspace;
  return memory.budget_bytes - std::min(memory.budget_bytes, fixed);
}

cache::CacheCosts CostsTogether(const ModelCosts& model) {
  cache::CacheCosts costs;
  for (const RankCosts& r : model.ranks) {
    costs.per_token += r.per_token;
    costs.per_sequence += r.per_sequence;
  }
  return costs;
}

void FillPools(const EngineConfig& config, const ModelCosts& model, MemoryPlan& memory) {
  memory.tokens = config.max_total_tokens;
  memory.sequences = config.max_running_requests;
  memory.snapshots = config.state_snapshots;
  memory.context_length = config.context_length;
  for (size_t r = 0; r < model.ranks.size(); ++r) {
    const RankCosts& costs = model.ranks[r];
    memory.ranks[r].latents = Times(costs.per_token, memory.tokens);
    memory.ranks[r].states = Times(costs.per_sequence, memory.sequences);
    memory.ranks[r].snapshots = Times(costs.per_sequence, memory.snapshots);
  }
}

MemoryPlan FixedPart(const EngineConfig& config, const ModelCosts& model, const Machine& machine) {
  MemoryPlan memory{.embedding_bytes = model.embedding_bytes,
                    .processes = model.processes,
                    .device = config.device,
                    .memory_bytes = machine.memory_bytes,
                    .available_bytes = machine.available_bytes,
                    .fraction = config.mem_fraction_static};
  memory.budget_bytes =
      std::min(machine.available_bytes,
               static_cast<uint64_t>(config.mem_fraction_static * static_cast<double>(machine.memory_bytes)));
  for (size_t r = 0; r < model.ranks.size(); ++r) {
    const uint64_t room = model.workspace ? model.workspace(config, static_cast<int>(r)) : 0;
    memory.ranks.push_back({.weights = model.ranks[r].weights, .workspace = room});
    memory.bytes_per_token.push_back(model.ranks[r].per_token);
    memory.bytes_per_sequence.push_back(model.ranks[r].per_sequence);
  }
  return memory;
}

// Tokens that the pool has to hold.
int64_t LeastTokens(const EngineConfig& given, const EngineConfig& config) {
  if (given.context_length > 0) return config.context_length;
  return std::min(config.context_length, config.chunked_prefill_size);
}

// With the number of requests that is given, or else the default.
Sized DecideFor(const EngineConfig& given, const ModelCosts& model, const Machine& machine) {
  EngineConfig config = given;
  ResolveSteps(&config);
  if (config.threads == 0) config.threads = machine.cores;
  if (config.seed == 0) config.seed = machine.random;
  if (config.mem_fraction_static == 0) config.mem_fraction_static = kDefaultFraction;
  if (config.context_length == 0) config.context_length = model.max_context;

  MemoryPlan memory = FixedPart(config, model, machine);
  const cache::CacheCosts costs = CostsTogether(model);
  const uint64_t left = Left(memory);
  if (given.state_snapshots == 0 && config.state_snapshots > 0 && costs.per_sequence > 0) {
    const int64_t tokens = AlignUp(
        given.max_total_tokens > 0 ? given.max_total_tokens : config.context_length, cache::kBlockTokens);
    const uint64_t pools =
        Times(costs.per_token, tokens) + Times(costs.per_sequence, config.max_running_requests);
    const uint64_t fit = (left - std::min(left, pools)) / costs.per_sequence;
    config.state_snapshots = static_cast<int64_t>(
        std::max<uint64_t>(std::min<uint64_t>(fit, static_cast<uint64_t>(config.state_snapshots)), 1));
  }
  if (config.max_total_tokens == 0) {
    const uint64_t snapshots = Times(costs.per_sequence, config.state_snapshots);
    config.max_total_tokens =
        cache::PoolTokens(costs, left - std::min(left, snapshots), config.max_running_requests,
                          config.context_length, LeastTokens(given, config));
  }
  config.max_total_tokens = AlignUp(config.max_total_tokens, cache::kBlockTokens);
  FillPools(config, model, memory);
  return {std::move(config), std::move(memory)};
}

}  // namespace

int RankThreads(const EngineConfig& config, int rank) {
  const int64_t ranks = config.parallel.tp;
  const int64_t threads = PartBegin(rank + 1, config.threads, ranks) - PartBegin(rank, config.threads, ranks);
  return static_cast<int>(std::max<int64_t>(threads, 1));
}

ModelCosts CostsOf(const model::ModelFootprint& shape, const ParallelPlan& plan, const EngineConfig& config,
                   int processes) {
  ModelCosts costs{.max_context = shape.max_context(), .processes = processes};
  // A device holds its own copy, among the weights.
  if (config.device == Device::kCpu) costs.embedding_bytes = shape.embedding_bytes();
  for (int rank = 0; rank < config.parallel.tp; ++rank) {
    const parallel::Shard shard = ShardOfRank(config.parallel, rank);
    const model::CacheShape pools = shape.cache_shape(shard);
    const cache::CacheCosts of_rank =
        cache::ComputeCacheCosts(pools.kv_layers, pools.kv_width, pools.state_layers, pools.recurrent_floats,
                                 pools.conv_floats, cache::CachedType(config.device));
    costs.ranks.push_back({.weights = shape.weight_bytes(shard, config.device),
                           .per_token = of_rank.per_token,
                           .per_sequence = of_rank.per_sequence});
  }
  costs.workspace = [&shape, plan](const EngineConfig& decided, int rank) {
    return WorkspaceBytes(shape, plan, decided, rank);
  };
  return costs;
}

StatusOr<Sized> DecideSizes(const EngineConfig& given, const ModelCosts& model, const Machine& machine) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(given));
  if (given.context_length > model.max_context) {
    return UsageError(StrCat("--context-length ", given.context_length, ": the model's own maximum is ",
                             model.max_context));
  }
  Sized usual = DecideFor(given, model, machine);
  if (given.max_running_requests > 0 || usual.memory.Fits()) return usual;
  EngineConfig fewer = given;
  for (int64_t n = usual.config.max_running_requests / 2; n > 0; n /= 2) {
    fewer.max_running_requests = n;
    Sized sized = DecideFor(fewer, model, machine);
    if (sized.memory.Fits()) return sized;
  }
  return usual;
}

}  // namespace perigee::engine
