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

// Zero means "decide for me"; Resolve writes the decided value back.
struct EngineConfig {
  std::string model_path;
  int64_t context_length = 0;  // default: the model's own maximum, or max_total_tokens when that is less
  int64_t max_running_requests = 0;  // default 64
  int64_t max_total_tokens = 0;      // default: see Resolve
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
  int32_t threads = 0;  // of all ranks together; default: the cores this process may use
  Device device = Device::kCpu;
  ParallelOptions parallel;
  uint64_t seed = 0;  // of unseeded requests; default: drawn once, so that two runs differ
  // Ids that end an answer besides those that the model folder names: the tokenizer's [EOS] and [EOT].
  std::vector<TokenId> extra_stop_ids;
  // Called while weights load with (bytes done, bytes in all); may be empty.
  std::function<void(uint64_t, uint64_t)> load_progress;
};

// Slots of the state pools under a resolved configuration: running requests, then snapshots.
inline int64_t NumStateSlots(const EngineConfig& config) {
  return config.max_running_requests + config.state_snapshots;
}

// What the values cost, known once the model is.
struct ModelLimits {
  int64_t max_context = 0;
  uint64_t weight_bytes = 0;        // as stored: about what the repacked weights of all ranks take
  uint64_t bytes_per_token = 0;     // latent records, on all ranks of the process together
  uint64_t bytes_per_sequence = 0;  // recurrent states and conv tails, on all ranks together
};

// What the process has.
struct Machine {
  uint64_t available_bytes = 0;
  int32_t cores = 1;
  uint64_t random = 1;  // for the seed when none was given
};

// Memory as /proc/meminfo gives it, cores by affinity, a fresh random number.
Machine ReadMachine();

// Checks what can be checked without the model. Errors name flag, value and what is accepted.
Status CheckConfig(const EngineConfig& config);

// Rows of a prefill step when nothing is said.
int64_t DefaultChunk(int32_t attn_cp);

// Checks the values against the model and the machine and fills in the defaults. max_total_tokens becomes
// what half of the available memory holds beside the states, but at most what max_running_requests whole
// contexts need and at least one context; always a multiple of the block. kResourceExhausted when the pools
// exceed the memory. Pure.
StatusOr<EngineConfig> Resolve(EngineConfig config, const ModelLimits& model, const Machine& whole);

// Loads the model and starts the loop. Errors name file, tensor or flag. Ranks are threads of this process,
// or the processes that mpirun started, of which this is rank 0: then the call is collective with
// FollowEngine on all others, and `processes` outlives the engine.
StatusOr<std::unique_ptr<Engine>> StartEngine(EngineConfig config, comm::ProcessRanks* processes = nullptr);
// What every other process does: loads its part of the model and runs rank 0's steps until rank 0 says
// goodbye. An error when the ranks do not come together or lose each other.
Status FollowEngine(EngineConfig config, comm::ProcessRanks* processes);

}  // namespace perigee::engine
