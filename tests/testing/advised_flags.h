#pragma once

#include <optional>
#include <sstream>
#include <string>

#include "engine/engine_config.h"

namespace perigee::test {

// The configuration with the flags that a refusal says would fit; nothing when it names none.
inline std::optional<engine::EngineConfig> Advised(engine::EngineConfig config, const std::string& message) {
  const std::string mark = "would fit:";
  const size_t at = message.find(mark);
  if (at == std::string::npos) return std::nullopt;
  std::istringstream words(message.substr(at + mark.size()));
  std::string flag;
  while (words >> flag) {
    if (flag == "--disable-radix-cache") {
      config.prefix_cache = false;
      continue;
    }
    if (flag == "--mem-fraction-static") {
      if (!(words >> config.mem_fraction_static)) return std::nullopt;
      continue;
    }
    int64_t value = 0;
    if (!(words >> value)) return std::nullopt;
    if (flag == "--max-running-requests") {
      config.max_running_requests = value;
    } else if (flag == "--max-total-tokens") {
      config.max_total_tokens = value;
    } else if (flag == "--context-length") {
      config.context_length = value;
    } else if (flag == "--state-snapshots") {
      config.state_snapshots = value;
    } else if (flag == "--chunked-prefill-size") {
      config.chunked_prefill_size = value;
    } else if (flag == "--max-prefill-tokens") {
      config.max_prefill_tokens = value;
    } else {
      return std::nullopt;
    }
  }
  return config;
}

}  // namespace perigee::test
