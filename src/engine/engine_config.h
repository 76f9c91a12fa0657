#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"

namespace perigee::engine {

// Zero means "decide for me"; the decided value is written back by Resolve.
struct EngineConfig {
  std::string model_path;
  int64_t context_length = 0;        // default: the model's own maximum
  int64_t max_running_requests = 0;  // default 64
  int64_t max_total_tokens = 0;      // default: see Resolve
  int64_t chunked_prefill_size =
      0;                // rows of a prefill step, default 2048; multiples of 64 keep results bit-equal
  int32_t threads = 0;  // default: the cores this process may use
  uint64_t seed = 0;    // of unseeded requests
  // Called while weights load with (bytes done, bytes in all); may be empty.
  std::function<void(uint64_t, uint64_t)> load_progress;
};

// Loads the model and starts the loop. Errors name file, tensor or flag.
StatusOr<std::unique_ptr<Engine>> StartEngine(EngineConfig config);

}  // namespace perigee::engine
