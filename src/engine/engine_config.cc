#include "engine/engine_config.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <string_view>

#include "base/math.h"
#include "base/strings.h"
#include "cache/cache_budget.h"
#include "cache/paged_kv_cache.h"

namespace perigee::engine {
namespace {

constexpr int64_t kDefaultRunningRequests = 64;
constexpr int64_t kDefaultChunk = 2048;
// A chunk is expanded into keys and values once on every rank: longer chunks make up for it.
constexpr int64_t kDefaultCpChunk = 8192;
constexpr int64_t kMaxRunningRequests = 65536;  // and snapshots: slots of states
constexpr int64_t kMaxChunk = int64_t{1} << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 36;
constexpr int64_t kMaxThreads = 1024;

// Zero stands for the default and always passes.
Status CheckFlag(std::string_view flag, int64_t value, int64_t max) {
  if (value >= 0 && value <= max) return Status::Ok();
  return UsageError(StrCat(flag, " ", value, ": give a number from 1 to ", max));
}

Status CheckPoolsFit(const EngineConfig& config, const ModelLimits& model, const Machine& machine) {
  constexpr uint64_t kTooMuch = std::numeric_limits<uint64_t>::max();
  const uint64_t latents =
      CheckedMul(static_cast<uint64_t>(config.max_total_tokens), model.bytes_per_token).value_or(kTooMuch);
  const uint64_t states =
      CheckedMul(static_cast<uint64_t>(config.max_running_requests), model.bytes_per_sequence)
          .value_or(kTooMuch);
  if (latents <= machine.available_bytes && states <= machine.available_bytes - latents) return Status::Ok();
  return ResourceExhausted(StrCat("the latent pool of ", config.max_total_tokens, " tokens takes ",
                                  HumanBytes(latents), " and the states of ", config.max_running_requests,
                                  " requests take ", HumanBytes(states), ", but ",
                                  HumanBytes(machine.available_bytes),
                                  " are available beside the weights: lower --max-total-tokens, "
                                  "--context-length or --max-running-requests"));
}

// Sizes of prefill steps, and what the prefix cache keeps.
void ResolveSteps(EngineConfig* config) {
  if (config->chunked_prefill_size == 0) {
    config->chunked_prefill_size = DefaultChunk(config->parallel.attn_cp);
    const int64_t most = config->max_prefill_tokens;
    if (most > 0 && most < config->chunked_prefill_size) {
      config->chunked_prefill_size =
          most < cache::kBlockTokens ? most : most / cache::kBlockTokens * cache::kBlockTokens;
    }
  }
  if (config->max_prefill_tokens == 0) config->max_prefill_tokens = config->chunked_prefill_size;
  if (config->chunked_prefill_size % cache::kBlockTokens != 0) config->prefix_cache = false;
  if (!config->prefix_cache) {
    config->state_snapshots = 0;
  } else if (config->state_snapshots == 0) {
    config->state_snapshots = 2 * config->max_running_requests;
  }
  if (config->state_checkpoint_interval == 0) {
    config->state_checkpoint_interval = AlignUp(config->chunked_prefill_size, cache::kBlockTokens);
  }
}

uint64_t ReadAvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(meminfo, unit);
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int32_t CountCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return static_cast<int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

Machine ReadMachine() {
  std::random_device random;
  return {.available_bytes = ReadAvailableBytes(),
          .cores = CountCores(),
          .random = (uint64_t{random()} << 32) | random()};
}

Status CheckConfig(const EngineConfig& config) {
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--context-length", config.context_length, kMaxTokens));
  PERIGEE_RETURN_IF_ERROR(
      CheckFlag("--max-running-requests", config.max_running_requests, kMaxRunningRequests));
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--max-total-tokens", config.max_total_tokens, kMaxTokens));
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--chunked-prefill-size", config.chunked_prefill_size, kMaxChunk));
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--max-prefill-tokens", config.max_prefill_tokens, kMaxChunk));
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--state-snapshots", config.state_snapshots, kMaxRunningRequests));
  PERIGEE_RETURN_IF_ERROR(
      CheckFlag("--state-checkpoint-interval", config.state_checkpoint_interval, kMaxTokens));
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--threads", config.threads, kMaxThreads));
  if (config.device != Device::kCpu && config.parallel.tp > 1) {
    return UsageError(StrCat("--device ", DeviceName(config.device), ": one rank runs on a GPU; --tp ",
                             config.parallel.tp, " is for --device cpu"));
  }
  if (const auto parallel = ResolveParallel(config.parallel); !parallel.ok()) return parallel.status();
  if (config.max_prefill_tokens > 0 && config.max_prefill_tokens < config.chunked_prefill_size) {
    return UsageError(StrCat("--max-prefill-tokens ", config.max_prefill_tokens,
                             ": one chunk of --chunked-prefill-size ", config.chunked_prefill_size,
                             " must fit; give at least that many"));
  }
  if (config.state_checkpoint_interval % cache::kBlockTokens != 0) {
    return UsageError(StrCat("--state-checkpoint-interval ", config.state_checkpoint_interval,
                             ": states can be kept at multiples of ", cache::kBlockTokens,
                             " tokens only; give such a number"));
  }
  if (config.max_total_tokens > 0 && config.context_length > config.max_total_tokens) {
    return UsageError(StrCat("--max-total-tokens ", config.max_total_tokens,
                             ": one request of --context-length ", config.context_length,
                             " must fit; give at least that many"));
  }
  return Status::Ok();
}

int64_t DefaultChunk(int32_t attn_cp) {
  return attn_cp == 1 ? kDefaultChunk : kDefaultCpChunk * attn_cp;
}

StatusOr<EngineConfig> Resolve(EngineConfig config, const ModelLimits& model, const Machine& whole) {
  PERIGEE_RETURN_IF_ERROR(CheckConfig(config));
  if (config.context_length > model.max_context) {
    return UsageError(StrCat("--context-length ", config.context_length, ": the model's own maximum is ",
                             model.max_context));
  }
  if (model.weight_bytes >= whole.available_bytes) {
    return ResourceExhausted(StrCat("the weights take ", HumanBytes(model.weight_bytes), ", but ",
                                    HumanBytes(whole.available_bytes), " of memory are available"));
  }
  Machine machine = whole;
  machine.available_bytes -= model.weight_bytes;
  if (config.max_running_requests == 0) config.max_running_requests = kDefaultRunningRequests;
  ResolveSteps(&config);
  if (config.threads == 0) config.threads = machine.cores;
  if (config.seed == 0) config.seed = machine.random;
  if (config.context_length == 0) {
    config.context_length = config.max_total_tokens == 0
                                ? model.max_context
                                : std::min(model.max_context, config.max_total_tokens);
  }
  if (config.max_total_tokens == 0) {
    const cache::CacheCosts costs{.per_token = model.bytes_per_token,
                                  .per_sequence = model.bytes_per_sequence};
    config.max_total_tokens = cache::PoolTokens(costs, machine.available_bytes / 2,
                                                config.max_running_requests, config.context_length);
  }
  config.max_total_tokens = AlignUp(config.max_total_tokens, cache::kBlockTokens);
  PERIGEE_RETURN_IF_ERROR(CheckPoolsFit(config, model, machine));
  return config;
}

}  // namespace perigee::engine
