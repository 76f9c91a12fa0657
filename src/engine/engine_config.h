#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/parallel_options.h"
#include "tensor/device.h"

namespace perigee::comm {
class ProcessRanks;
}

namespace perigee::engine {

// Zero means "decide for me"; DecideSizes writes the decided value back.
struct EngineConfig {
  std::string model_path;
  // Random weights, by `seed`: of model_path only config.json is read, and with a shape's name nothing.
  bool dummy_weights = false;
  std::string shape;
  int64_t context_length = 0;        // default: the model's own maximum
  int64_t max_running_requests = 0;  // default 64
  int64_t max_total_tokens = 0;      // default: see DecideSizes (memory_budget.h)
  // Rows of a prefill step, default 2048, or 8192 a CP rank. Multiples of 64 keep results bit-equal.
  int64_t chunked_prefill_size = 0;
  // Rows of a prefill step when several prompts share it; default chunked_prefill_size, and not less.
  int64_t max_prefill_tokens = 0;
  bool prefix_cache = true;  // needs a chunked_prefill_size that is a multiple of 64
  // States that the prefix cache keeps beside those of running requests; default twice their number, none
  // without prefix cache.
  int64_t state_snapshots = 0;
  // A prompt leaves a snapshot at absolute multiples of this, itself a multiple of 64; default
  // chunked_prefill_size, which costs no further cut.
  int64_t state_checkpoint_interval = 0;
  // Part of the memory, (0, 1], that weights, pools and workspace may take together; default 0.8.
  double mem_fraction_static = 0;
  int32_t threads = 0;  // of all ranks together; default: the cores this process may use
  Device device = Device::kCpu;
  ParallelOptions parallel;
  uint64_t seed = 0;  // of unseeded requests; default: drawn once, so that two runs differ
  // Ids of the caller's tokenizer, which must be as many as the model's; 0: not compared.
  int64_t tokenizer_ids = 0;
  // Ids that end an answer besides those that the model folder names: the tokenizer's [EOS] and [EOT].
  std::vector<TokenId> extra_stop_ids;
  // Called while weights load with (bytes done, bytes in all); may be empty.
  std::function<void(uint64_t, uint64_t)> load_progress;
};

// Slots of the state pools under a resolved configuration: running requests, then snapshots.
inline int64_t NumStateSlots(const EngineConfig& config) {
  return config.max_running_requests + config.state_snapshots;
}

// Checks what can be checked without the model. Errors name flag, value and what is accepted.
Status CheckConfig(const EngineConfig& config);

// Rows of a prefill step when nothing is said.
int64_t DefaultChunk(int32_t attn_cp);

// Writes the default sizes of steps, of what runs and of the prefix cache. Pure.
void ResolveSteps(EngineConfig* config);

// Loads the model and starts the loop. Errors name file, tensor or flag. Ranks are threads of this process,
// or the processes that mpirun started, of which this is rank 0: then the call is collective with
// FollowEngine on all others, and `processes` outlives the engine.
StatusOr<std::unique_ptr<Engine>> StartEngine(EngineConfig config, comm::ProcessRanks* processes = nullptr);
// What every other process does: loads its part of the model and runs rank 0's steps until rank 0 says
// goodbye. An error when the ranks do not come together or lose each other.
Status FollowEngine(EngineConfig config, comm::ProcessRanks* processes);

}  // namespace perigee::engine
