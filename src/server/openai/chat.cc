#include "server/openai/chat.h"

#include <utility>

#include "server/budget.h"
#include "server/generation.h"
#include "server/openai/chat_request.h"
#include "server/openai/format.h"

namespace perigee::server {
namespace {

class ChatResponder : public Responder {
 public:
  ChatResponder(std::shared_ptr<const ServingContext> context, bool logprobs, bool include_usage)
      : context_(std::move(context)),
        head_(NewResponseHead(*context_, "chatcmpl")),
        logprobs_(logprobs),
        include_usage_(include_usage) {}

  void OnStart(ResponseChannel& channel, const Answer& answer) override {
    JsonWriter w;
    BeginChunk(w, answer);
    w.Field("role", "assistant").Field("content", "");
    EndChunk(w);
    channel.Event(w.Take());
  }

  void OnDelta(ResponseChannel& channel, const Answer& answer, const AnswerDelta& delta) override {
    if (!channel.stream()) return;
    if (!delta.text.empty() || (logprobs_ && HasContentTokens(answer, delta.first_token))) {
      JsonWriter w;
      BeginChunk(w, answer);
      w.Field("content", delta.text);
      EndChunk(w, &answer, delta.first_token);
      channel.Event(w.Take());
    }
    for (size_t i = delta.first_call; i < answer.calls.size(); ++i) {
      JsonWriter w;
      BeginChunk(w, answer);
      w.Key("tool_calls").BeginArray();
      WriteCall(w, answer.calls[i], i);
      w.EndArray();
      EndChunk(w);
      channel.Event(w.Take());
    }
    if (answer.end == AnswerEnd::kNone) return;
    JsonWriter w;
    BeginChunk(w, answer);
    EndChunk(w, nullptr, 0, FinishReason(answer));
    channel.Event(w.Take());
  }

  void OnEnd(ResponseChannel& channel, const std::vector<const Answer*>& answers,
             const Usage& usage) override {
    JsonWriter w;
    if (!channel.stream()) {
      BeginResponse(w, head_, "chat.completion");
      w.Key("choices").BeginArray();
      for (const Answer* answer : answers) WriteChoice(w, *answer);
      w.EndArray().Key("usage");
      WriteUsage(w, usage);
      w.EndObject();
      return channel.SendBody(w.Take());
    }
    if (include_usage_) {
      BeginResponse(w, head_, "chat.completion.chunk");
      w.Key("choices").BeginArray().EndArray().Key("usage");
      WriteUsage(w, usage);
      w.EndObject();
      channel.Event(w.Take());
    }
    channel.EndStream();
  }

 private:
  static bool HasContentTokens(const Answer& answer, size_t first_token) {
    for (size_t i = first_token; i < answer.shown_tokens; ++i) {
      if (answer.tokens[i].content) return true;
    }
    return false;
  }

  void BeginChunk(JsonWriter& w, const Answer& answer) const {
    BeginResponse(w, head_, "chat.completion.chunk");
    w.Key("choices").BeginArray().BeginObject().Field("index", answer.index);
    w.Key("delta").BeginObject();
  }

  // With `answer`: its shown tokens from `first_token` on are in this chunk.
  void EndChunk(JsonWriter& w, const Answer* answer = nullptr, size_t first_token = 0,
                const std::optional<std::string>& finish_reason = std::nullopt) const {
    w.EndObject().Key("logprobs");
    WriteLogprobs(w, answer, first_token);
    w.Field("finish_reason", finish_reason).EndObject().EndArray();
    // The last chunk alone has the numbers; the others say so.
    if (include_usage_) w.Field("usage", nullptr);
    w.EndObject();
  }

  void WriteChoice(JsonWriter& w, const Answer& answer) const {
    w.BeginObject().Field("index", answer.index);
    w.Key("message").BeginObject().Field("role", "assistant").Key("content");
    if (answer.text.empty() && !answer.calls.empty()) {
      w.Value(nullptr);
    } else {
      w.Value(answer.text);
    }
    if (!answer.calls.empty()) {
      w.Key("tool_calls").BeginArray();
      for (const text::ToolCall& call : answer.calls) WriteCall(w, call, std::nullopt);
      w.EndArray();
    }
    w.EndObject().Key("logprobs");
    WriteLogprobs(w, &answer, 0);
    w.Field("finish_reason", FinishReason(answer)).EndObject();
  }

  // Chunks number the calls of a reply from 0, whatever number the id carries.
  static void WriteCall(JsonWriter& w, const text::ToolCall& call, std::optional<size_t> index) {
    w.BeginObject();
    if (index) w.Field("index", *index);
    w.Field("id", call.id).Field("type", "function").Key("function").BeginObject();
    w.Field("name", call.name).Field("arguments", call.arguments).EndObject().EndObject();
  }

  void WriteLogprobs(JsonWriter& w, const Answer* answer, size_t first_token) const {
    if (!logprobs_ || !answer) {
      w.Value(nullptr);
      return;
    }
    w.BeginObject().Key("content").BeginArray();
    for (size_t i = first_token; i < answer->shown_tokens; ++i) {
      const AnswerToken& token = answer->tokens[i];
      if (!token.content) continue;
      w.BeginObject();
      WriteToken(w, token.output.id, token.output.logprob);
      w.Key("top_logprobs").BeginArray();
      for (const engine::TopToken& top : token.output.top) {
        w.BeginObject();
        WriteToken(w, top.id, top.logprob);
        w.EndObject();
      }
      w.EndArray().EndObject();
    }
    w.EndArray().EndObject();
  }

  void WriteToken(JsonWriter& w, engine::TokenId id, float logprob) const {
    w.Field("token", TokenText(*context_->tokenizer, id)).Field("logprob", FiniteLogprob(logprob));
    w.Key("bytes").BeginArray();
    for (unsigned char byte : context_->tokenizer->Bytes(id)) w.Value(int{byte});
    w.EndArray();
  }

  std::shared_ptr<const ServingContext> context_;
  ResponseHead head_;
  bool logprobs_;
  bool include_usage_;
};

// The prompt's ids. A continued message is rendered whole and its end mark taken off again.
StatusOr<std::vector<engine::TokenId>> EncodePrompt(const ServingContext& context,
                                                    const ChatRequest& request) {
  PERIGEE_ASSIGN_OR_RETURN(auto ids, context.chat_template.Encode(request.prompt));
  if (request.continue_final_message && !ids.empty()) ids.pop_back();
  return ids;
}

}  // namespace

void HandleChat(const std::shared_ptr<const ServingContext>& context, const HttpRequest& http,
                ResponseChannel channel) {
  ChatRequest request;
  std::optional<ApiError> error = ParseChatRequest(http.body, request);
  if (!error) error = CheckModel(*context, request.model);
  GenerationFields& fields = request.generation;
  channel.SetStream(fields.stream);
  if (error) return channel.Fail(*error);
  auto ids = EncodePrompt(*context, request);
  if (!ids.ok()) return channel.Fail(FromStatus(ids.status()));

  int64_t max_new_tokens = 0;
  error = DecideBudget({.prompt_tokens = static_cast<int64_t>(ids->size()),
                        .context_length = context->engine->model_info().context_length,
                        .pool_tokens = context->engine->model_info().max_total_tokens,
                        .max_tokens = fields.max_tokens,
                        .default_tokens = std::nullopt,
                        .prompt_field = "messages",
                        .max_tokens_field = request.max_tokens_field},
                       max_new_tokens);
  if (error) return channel.Fail(*error);

  auto responder = std::make_unique<ChatResponder>(context, fields.sampling.logprobs, request.include_usage);
  GenerationRequest generation{.prompts = {std::move(*ids)},
                               .max_new_tokens = {max_new_tokens},
                               .sampling = std::move(fields.sampling),
                               .n = fields.n,
                               .answer = {.stop = std::move(fields.stop),
                                          .skip_special_tokens = fields.skip_special_tokens,
                                          .tools = std::move(request.tools)}};
  StartGeneration(context, std::move(generation), std::move(channel), std::move(responder));
}

}  // namespace perigee::server
