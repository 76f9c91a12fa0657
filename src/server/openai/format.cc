#include "server/openai/format.h"

#include <chrono>
#include <cstdio>
#include <mutex>
#include <random>

#include "base/strings.h"

namespace perigee::server {

ResponseHead NewResponseHead(const ServingContext& context, std::string_view id_prefix) {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = RandomId(id_prefix),
          .model = context.served_model_name,
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
}

void BeginResponse(JsonWriter& w, const ResponseHead& head, std::string_view object) {
  w.BeginObject();
  w.Field("id", head.id).Field("object", object).Field("created", head.created).Field("model", head.model);
}

std::string RandomId(std::string_view prefix) {
  static std::mutex mutex;
  static std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()};
  uint64_t words[2];
  {
    std::lock_guard lock(mutex);
    for (uint64_t& w : words) w = generator();
  }
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return StrCat(prefix, "-", std::string_view(hex, 32));
}

void WriteUsage(JsonWriter& w, const Usage& usage) {
  w.BeginObject();
  w.Field("prompt_tokens", usage.prompt_tokens).Field("completion_tokens", usage.completion_tokens);
  w.Field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  w.Key("prompt_tokens_details").BeginObject().Field("cached_tokens", usage.cached_tokens).EndObject();
  w.EndObject();
}

std::optional<std::string> FinishReason(const Answer& answer) {
  switch (answer.end) {
    case AnswerEnd::kNone:
      return std::nullopt;
    case AnswerEnd::kLength:
      return "length";
    case AnswerEnd::kStop:
      return answer.calls.empty() ? "stop" : "tool_calls";
  }
  return std::nullopt;
}

std::string TokenText(const text::Tokenizer& tokenizer, engine::TokenId id) {
  std::string_view bytes = tokenizer.Bytes(id);
  if (text::IsValidUtf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (unsigned char byte : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", byte);
    out += hex;
  }
  return out;
}

std::optional<ApiError> CheckModel(const ServingContext& context, const std::string& model) {
  if (model.empty() || model == "default" || model == context.served_model_name ||
      model == context.engine->model_info().model_path)
    return std::nullopt;
  return ApiError{.status = 404,
                  .message = StrCat("the model ", Quoted(model), " is not served here; this server has ",
                                    Quoted(context.served_model_name)),
                  .param = "model",
                  .code = "model_not_found"};
}

}  // namespace perigee::server
