#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/paged_kv_cache.h"
#include "engine/memory_budget.h"

namespace perigee::engine {
namespace {

// Looks for demands that fit, by giving up those of the caller one after the other.
class Adviser {
 public:
  Adviser(const EngineConfig& given, const ModelCosts& model, const Machine& machine)
      : given_(given), usual_(given), now_(given), model_(model), machine_(machine) {
    ResolveSteps(&usual_);
  }

  // wanted: bytes of what was given.
  std::string Advice(uint64_t wanted) {
    if (Find()) return StrCat("would fit:", Flags());
    if (const auto fraction = FractionFor(wanted)) {
      return StrCat("would fit: --mem-fraction-static ", *fraction);
    }
    // At its least.
    const uint64_t least = sized_.memory.Total();
    if (const auto fraction = FractionFor(least)) {
      return StrCat("would fit:", Flags(), " --mem-fraction-static ", *fraction);
    }
    return StrCat("it takes ", HumanBytes(least), " at the least: give it more memory or more ranks");
  }

 private:
  bool Fits() {
    StatusOr<Sized> sized = DecideSizes(now_, model_, machine_);
    if (!sized.ok()) return false;
    sized_ = std::move(sized).value();
    return sized_.memory.Fits();
  }

  // What was given becomes a default, which gives way by itself.
  bool FitsWithout(int64_t EngineConfig::*size) {
    if (now_.*size == 0) return false;
    now_.*size = 0;
    return Fits();
  }

  bool Find() {
    if (FitsWithout(&EngineConfig::state_snapshots) || FitsWithout(&EngineConfig::max_total_tokens) ||
        FitsWithout(&EngineConfig::context_length)) {
      return true;
    }
    while (now_.max_running_requests > 1) {
      now_.max_running_requests /= 2;
      if (Fits()) return true;
    }
    return FindSteps() || AtLeast();
  }

  // Smaller steps take less workspace.
  bool FindSteps() {
    now_.max_running_requests = given_.max_running_requests;
    now_.chunked_prefill_size = usual_.chunked_prefill_size;
    if (FitsWithout(&EngineConfig::max_prefill_tokens)) return true;
    while (now_.chunked_prefill_size > cache::kBlockTokens) {
      now_.chunked_prefill_size = std::max(
          cache::kBlockTokens, now_.chunked_prefill_size / 2 / cache::kBlockTokens * cache::kBlockTokens);
      if (Fits()) return true;
    }
    return false;
  }

  bool AtLeast() {
    now_.max_running_requests = 1;
    now_.prefix_cache = false;
    return Fits();
  }

  // In hundredths, rounded up.
  std::optional<double> FractionFor(uint64_t bytes) const {
    if (bytes > machine_.available_bytes || machine_.memory_bytes == 0) return std::nullopt;
    const double part = static_cast<double>(bytes) / static_cast<double>(machine_.memory_bytes);
    const double fraction = std::ceil(part * 100) / 100;
    if (fraction > 1) return std::nullopt;
    return fraction;
  }

  // All that makes the pools, and of the steps what differs.
  std::string Flags() const {
    const EngineConfig& c = sized_.config;
    std::string flags = StrCat(" --max-running-requests ", c.max_running_requests, " --max-total-tokens ",
                               c.max_total_tokens);
    if (given_.context_length > c.max_total_tokens) flags += StrCat(" --context-length ", c.max_total_tokens);
    if (!c.prefix_cache) {
      flags += " --disable-radix-cache";
    } else {
      flags += StrCat(" --state-snapshots ", c.state_snapshots);
    }
    if (c.chunked_prefill_size != usual_.chunked_prefill_size) {
      flags += StrCat(" --chunked-prefill-size ", c.chunked_prefill_size);
    }
    if (given_.max_prefill_tokens > 0 && c.max_prefill_tokens != given_.max_prefill_tokens) {
      flags += StrCat(" --max-prefill-tokens ", c.max_prefill_tokens);
    }
    return flags;
  }

  const EngineConfig& given_;
  EngineConfig usual_;  // given, with the default sizes of steps
  EngineConfig now_;
  const ModelCosts& model_;
  const Machine& machine_;
  Sized sized_;
};

}  // namespace

Status CheckFits(const EngineConfig& given, const Sized& sized, const ModelCosts& model,
                 const Machine& machine) {
  const MemoryPlan& memory = sized.memory;
  if (memory.Fits()) return Status::Ok();
  RankMemory sum{.weights = memory.embedding_bytes * static_cast<uint64_t>(memory.processes)};
  for (const RankMemory& r : memory.ranks) {
    sum.weights += r.weights;
    sum.latents += r.latents;
    sum.states += r.states;
    sum.snapshots += r.snapshots;
    sum.workspace += r.workspace;
  }
  return ResourceExhausted(
      StrCat("the model takes ", HumanBytes(memory.Total()), ": weights ", HumanBytes(sum.weights),
             ", latents of ", memory.tokens, " tokens ", HumanBytes(sum.latents), ", states of ",
             memory.sequences, " requests ", HumanBytes(sum.states), ", ", memory.snapshots, " snapshots ",
             HumanBytes(sum.snapshots), ", workspace ", HumanBytes(sum.workspace), "; it may take ",
             HumanBytes(memory.budget_bytes), " (--mem-fraction-static ", memory.fraction, " of ",
             HumanBytes(memory.memory_bytes), ", of which ", HumanBytes(memory.available_bytes),
             " are free); ", Adviser(given, model, machine).Advice(memory.Total())));
}

}  // namespace perigee::engine
