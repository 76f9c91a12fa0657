#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/request_fields.h"

namespace perigee::server {

// POST /v1/completions.
struct CompletionRequest {
  std::string model;
  PromptFields prompt;
  GenerationFields generation;
  bool echo = false;
  bool include_usage = false;  // stream_options.include_usage
};

std::optional<ApiError> ParseCompletionRequest(std::string_view body, CompletionRequest& request);

}  // namespace perigee::server
