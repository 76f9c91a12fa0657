#include "engine/engine_config.h"

#include <string_view>

#include "base/math.h"
#include "base/strings.h"
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

}  // namespace

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
  if (!(config.mem_fraction_static >= 0 && config.mem_fraction_static <= 1)) {
    return UsageError(StrCat("--mem-fraction-static ", config.mem_fraction_static,
                             ": give a part of the memory, above 0 and up to 1"));
  }
  PERIGEE_RETURN_IF_ERROR(CheckFlag("--threads", config.threads, kMaxThreads));
  if (config.device != Device::kCpu && config.parallel.tp > 1) {
    return UsageError(StrCat("--device ", DeviceName(config.device), ": one rank runs on a GPU; --tp ",
                             config.parallel.tp, " is for --device cpu"));
  }
  if (!config.shape.empty() && !config.dummy_weights) {
    return UsageError(
        StrCat("--shape ", config.shape, ": a shape has no weights; give --load-format dummy with it"));
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

void ResolveSteps(EngineConfig* config) {
  if (config->max_running_requests == 0) config->max_running_requests = kDefaultRunningRequests;
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

}  // namespace perigee::engine
