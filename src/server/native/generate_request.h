#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/request_fields.h"

namespace perigee::server {

// POST /generate: SGLang's own form.
struct GenerateRequest {
  std::string rid;    // the client's name for it, may be empty
  std::string model;  // may be empty
  PromptFields prompt;
  GenerationFields generation;
  std::optional<int64_t> logprob_start;  // with logprobs: first prompt position to score; absent: none
  bool text_in_logprobs = false;
};

std::optional<ApiError> ParseGenerateRequest(std::string_view body, GenerateRequest& request);

}  // namespace perigee::server
