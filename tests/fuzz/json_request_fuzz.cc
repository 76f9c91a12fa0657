#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "server/api_error.h"
#include "server/native/generate_request.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "text/tokenizer.h"

namespace {

using perigee::server::ApiError;
using perigee::server::GenerationFields;

// A refusal is a 400 with a reason; what passes is within the limits that the engine relies on.
void Check(const std::optional<ApiError>& error, const GenerationFields& fields) {
  if (error) {
    PERIGEE_CHECK(error->status == 400 && !error->message.empty());
    PERIGEE_CHECK(perigee::text::IsValidUtf8(perigee::server::ErrorBody(*error)));
    return;
  }
  PERIGEE_CHECK(fields.sampling.temperature >= 0 && fields.sampling.top_p > 0 && fields.sampling.top_p <= 1);
  PERIGEE_CHECK(fields.sampling.top_k >= 0 && fields.n >= 1 && fields.n <= perigee::server::kMaxChoices);
  PERIGEE_CHECK(fields.max_tokens.value_or(0) >= 0);
  PERIGEE_CHECK(fields.stop.size() <= perigee::server::kMaxStopStrings);
}

}  // namespace

// Any bytes as the body of each endpoint.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  perigee::server::ChatRequest chat;
  auto error = ParseChatRequest(body, chat);
  Check(error, chat.generation);
  PERIGEE_CHECK(error || !chat.prompt.messages.empty());

  perigee::server::CompletionRequest completion;
  error = ParseCompletionRequest(body, completion);
  Check(error, completion.generation);
  PERIGEE_CHECK(error || completion.prompt.size() > 0);

  perigee::server::GenerateRequest generate;
  error = ParseGenerateRequest(body, generate);
  Check(error, generate.generation);
  PERIGEE_CHECK(error || generate.prompt.size() > 0);
  return 0;
}
