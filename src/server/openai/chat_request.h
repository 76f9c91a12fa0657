#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/request_fields.h"
#include "server/tool_calls.h"
#include "text/chat_template.h"

namespace perigee::server {

// POST /v1/chat/completions. Content is plain text always: special strings in it never become control ids.
struct ChatRequest {
  std::string model;
  text::ChatPrompt prompt;              // tool-call ids already in the model's form
  bool continue_final_message = false;  // the last (assistant) message is left open and continued
  ToolPolicy tools;
  GenerationFields generation;
  std::string_view max_tokens_field = "max_tokens";  // the name under which it came
  bool include_usage = false;                        // stream_options.include_usage
};

std::optional<ApiError> ParseChatRequest(std::string_view body, ChatRequest& request);

}  // namespace perigee::server
