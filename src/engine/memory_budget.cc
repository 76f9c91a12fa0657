#include "engine/memory_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
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

// As ModelRunner and the model under it run the largest steps of both kinds.
uint64_t WorkspaceBytes(const model::ModelFootprint& shape, const ParallelPlan& plan,
                        const EngineConfig& config, int rank) {
  if (config.device != Device::kCpu) return kernels::DeviceContext::kScratchBytes;
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
  return tally.peak_bytes();
}

// What everything else leaves of the budget for pools.
uint64_t Left(const MemoryPlan& memory) {
  uint64_t fixed = memory.embedding_bytes;
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
  memory.longest_request = config.context_length;
  for (size_t r = 0; r < model.ranks.size(); ++r) {
    const RankCosts& costs = model.ranks[r];
    memory.ranks[r].latents = Times(costs.per_token, memory.tokens);
    memory.ranks[r].states = Times(costs.per_sequence, memory.sequences);
    memory.ranks[r].snapshots = Times(costs.per_sequence, memory.snapshots);
  }
}

MemoryPlan FixedPart(const EngineConfig& config, const ModelCosts& model, const Machine& machine) {
  MemoryPlan memory{.embedding_bytes = model.embedding_bytes,
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

// Flags that would fit, or what stands in the way of any: half as many requests and as many snapshots until a
// pool of at least one block is left.
std::string Advice(const Sized& sized, const ModelCosts& model) {
  const MemoryPlan& memory = sized.memory;
  const cache::CacheCosts costs = CostsTogether(model);
  const uint64_t left = Left(memory);
  const uint64_t block = Times(costs.per_token, cache::kBlockTokens);
  if (left < block + costs.per_sequence) {
    return "weights and workspace alone leave no room for a request: it takes more memory, a larger "
           "--mem-fraction-static, or with it a smaller --chunked-prefill-size";
  }
  const int64_t wanted = std::min(memory.tokens, AlignUp(memory.longest_request, cache::kBlockTokens));
  int64_t sequences = memory.sequences;
  const auto states = [&] { return Times(costs.per_sequence, sequences); };
  while (sequences > 1 && states() + Times(costs.per_token, wanted) > left) sequences /= 2;
  const uint64_t pool = left - states();
  int64_t tokens = memory.tokens;
  if (block > 0) tokens = std::min(tokens, static_cast<int64_t>(pool / block) * cache::kBlockTokens);
  std::string flags = StrCat("--max-running-requests ", sequences, " --max-total-tokens ", tokens);
  if (tokens < memory.longest_request) flags += StrCat(" --context-length ", tokens);
  if (memory.snapshots > 0) {
    const uint64_t rest = pool - Times(costs.per_token, tokens);
    const int64_t fit =
        costs.per_sequence == 0
            ? memory.snapshots
            : static_cast<int64_t>(std::min<uint64_t>(rest / costs.per_sequence, uint64_t{1} << 16));
    flags +=
        fit == 0 ? " --disable-radix-cache" : StrCat(" --state-snapshots ", std::min(fit, memory.snapshots));
  }
  return StrCat("would fit: ", flags);
}

}  // namespace

int RankThreads(const EngineConfig& config, int rank) {
  const int64_t ranks = config.parallel.tp;
  const int64_t threads = PartBegin(rank + 1, config.threads, ranks) - PartBegin(rank, config.threads, ranks);
  return static_cast<int>(std::max<int64_t>(threads, 1));
}

ModelCosts CostsOf(const model::ModelFootprint& shape, const ParallelPlan& plan, const EngineConfig& config) {
  ModelCosts costs{.max_context = shape.max_context(), .embedding_bytes = shape.embedding_bytes()};
  for (int rank = 0; rank < config.parallel.tp; ++rank) {
    const parallel::Shard shard = ShardOfRank(config.parallel, rank);
    const model::CacheShape pools = shape.cache_shape(shard);
    const cache::CacheCosts of_rank =
        cache::ComputeCacheCosts(pools.kv_layers, pools.kv_width, pools.state_layers, pools.recurrent_floats,
                                 pools.conv_floats, cache::CachedType(config.device));
    costs.ranks.push_back({.weights = shape.weight_bytes(shard),
                           .per_token = of_rank.per_token,
                           .per_sequence = of_rank.per_sequence});
  }
  costs.workspace = [&shape, plan](const EngineConfig& decided, int rank) {
    return WorkspaceBytes(shape, plan, decided, rank);
  };
  return costs;
}

StatusOr<Sized> DecideSizes(EngineConfig config, const ModelCosts& model, const Machine& machine) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(config));
  if (config.context_length > model.max_context) {
    return UsageError(StrCat("--context-length ", config.context_length, ": the model's own maximum is ",
                             model.max_context));
  }
  const bool own_snapshots = config.state_snapshots == 0;
  ResolveSteps(&config);
  if (config.threads == 0) config.threads = machine.cores;
  if (config.seed == 0) config.seed = machine.random;
  if (config.mem_fraction_static == 0) config.mem_fraction_static = kDefaultFraction;
  if (config.context_length == 0) {
    config.context_length = config.max_total_tokens == 0
                                ? model.max_context
                                : std::min(model.max_context, config.max_total_tokens);
  }

  MemoryPlan memory = FixedPart(config, model, machine);
  const cache::CacheCosts costs = CostsTogether(model);
  const uint64_t left = Left(memory);
  if (own_snapshots && config.state_snapshots > 0 && costs.per_sequence > 0) {
    const int64_t tokens = config.max_total_tokens > 0 ? config.max_total_tokens
                                                       : AlignUp(config.context_length, cache::kBlockTokens);
    const uint64_t pools =
        Times(costs.per_token, tokens) + Times(costs.per_sequence, config.max_running_requests);
    const uint64_t fit = (left - std::min(left, pools)) / costs.per_sequence;
    config.state_snapshots = static_cast<int64_t>(
        std::max<uint64_t>(std::min<uint64_t>(fit, static_cast<uint64_t>(config.state_snapshots)), 1));
  }
  if (config.max_total_tokens == 0) {
    const uint64_t snapshots = Times(costs.per_sequence, config.state_snapshots);
    config.max_total_tokens = cache::PoolTokens(costs, left - std::min(left, snapshots),
                                                config.max_running_requests, config.context_length);
  }
  config.max_total_tokens = AlignUp(config.max_total_tokens, cache::kBlockTokens);
  FillPools(config, model, memory);
  return Sized{std::move(config), std::move(memory)};
}

Status CheckFits(const Sized& sized, const ModelCosts& model) {
  const MemoryPlan& memory = sized.memory;
  if (memory.Fits()) return Status::Ok();
  RankMemory sum;
  for (const RankMemory& r : memory.ranks) {
    sum.weights += r.weights;
    sum.latents += r.latents;
    sum.states += r.states;
    sum.snapshots += r.snapshots;
    sum.workspace += r.workspace;
  }
  return ResourceExhausted(
      StrCat("the model takes ", HumanBytes(memory.Total()), ": weights ",
             HumanBytes(sum.weights + memory.embedding_bytes), ", latents of ", memory.tokens, " tokens ",
             HumanBytes(sum.latents), ", states of ", memory.sequences, " requests ", HumanBytes(sum.states),
             ", ", memory.snapshots, " snapshots ", HumanBytes(sum.snapshots), ", workspace ",
             HumanBytes(sum.workspace), "; it may take ", HumanBytes(memory.budget_bytes),
             " (--mem-fraction-static ", memory.fraction, " of ", HumanBytes(memory.memory_bytes),
             ", of which ", HumanBytes(memory.available_bytes), " are free); ", Advice(sized, model)));
}

}  // namespace perigee::engine
