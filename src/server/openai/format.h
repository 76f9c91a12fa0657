#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/answer.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/json_writer.h"
#include "server/serving_context.h"

// Pieces that the OpenAI answers share.
namespace perigee::server {

// Begins every object of one response.
struct ResponseHead {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;
};
ResponseHead NewResponseHead(const ServingContext& context, std::string_view id_prefix);
// {"id", "object", "created", "model"; left open
void BeginResponse(JsonWriter& w, const ResponseHead& head, std::string_view object);

// "prefix-" and 32 random hexadecimal digits.
std::string RandomId(std::string_view prefix);

void WriteUsage(JsonWriter& w, const Usage& usage);

// "stop", "length", "tool_calls"; absent while the answer goes on.
std::optional<std::string> FinishReason(const Answer& answer);

// The token as text; bytes that are not whole characters as "bytes:\xe4\xbd".
std::string TokenText(const text::Tokenizer& tokenizer, engine::TokenId id);

// A request may name the model as it is served, its path, or nothing in particular ("default"); anything else
// is a 404.
std::optional<ApiError> CheckModel(const ServingContext& context, const std::string& model);

}  // namespace perigee::server
