#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace perigee::server {

inline constexpr int32_t kMaxChoices = 16;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;
inline constexpr size_t kMaxStopIds = 64;
// Prompts of one request times its n.
inline constexpr size_t kMaxAnswers = 1024;

// What every generating endpoint reads from its request.
struct GenerationFields {
  // max_new_tokens is decided later, when the prompt's length is known (budget.h).
  engine::SamplingParams sampling;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  int32_t n = 1;
  bool stream = false;
};

// Prompts as text or as ids: exactly one of the two has entries.
struct PromptFields {
  std::vector<std::string> texts;
  std::vector<std::vector<engine::TokenId>> ids;
  bool batch = false;                // the request held a list of prompts
  bool allow_special_tokens = true;  // special strings in `texts` become ids

  size_t size() const { return texts.size() + ids.size(); }
};

}  // namespace perigee::server
