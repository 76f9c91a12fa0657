#include "server/native/generate.h"

#include <chrono>
#include <utility>

#include "server/generation.h"
#include "server/native/generate_request.h"
#include "server/openai/format.h"
#include "server/prompts.h"

namespace perigee::server {
namespace {

constexpr int64_t kDefaultMaxTokens = 128;

// How the answers to one request are written.
struct GenerateForm {
  std::string id;
  bool list = false;  // several answers, or a list of prompts: a list in the body, "index" in events
  bool logprobs = false;
  bool top_logprobs = false;
  std::optional<int64_t> prompt_logprob_start;
  bool text_in_logprobs = false;
  std::vector<std::vector<engine::TokenId>> prompts;  // only for prompt log-probabilities
};

class GenerateResponder : public Responder {
 public:
  GenerateResponder(std::shared_ptr<const ServingContext> context, GenerateForm form)
      : context_(std::move(context)), form_(std::move(form)), start_(Clock::now()) {}

  void OnStart(ResponseChannel&, const Answer&) override {}

  // Every event holds the whole answer so far.
  void OnDelta(ResponseChannel& channel, const Answer& answer, const AnswerDelta&) override {
    if (!channel.stream()) return;
    JsonWriter w;
    WriteAnswer(w, answer);
    channel.Event(w.Take());
  }

  void OnEnd(ResponseChannel& channel, const std::vector<const Answer*>& answers, const Usage&) override {
    if (channel.stream()) return channel.EndStream();
    JsonWriter w;
    if (form_.list) w.BeginArray();
    for (const Answer* answer : answers) WriteAnswer(w, *answer);
    if (form_.list) w.EndArray();
    channel.SendBody(w.Take());
  }

 private:
  using Clock = std::chrono::steady_clock;

  void WriteAnswer(JsonWriter& w, const Answer& answer) const {
    w.BeginObject().Field("text", answer.text).Key("output_ids").BeginArray();
    for (const AnswerToken& token : answer.tokens) w.Value(token.output.id);
    w.EndArray().Key("meta_info").BeginObject();
    w.Field("id", form_.list ? form_.id + "-" + std::to_string(answer.index) : form_.id);
    w.Key("finish_reason");
    WriteFinishReason(w, answer);
    w.Field("prompt_tokens", answer.prompt_tokens).Field("completion_tokens", answer.completion_tokens());
    w.Field("cached_tokens", answer.cached_tokens);
    w.Field("e2e_latency", std::chrono::duration<double>(Clock::now() - start_).count());
    if (form_.logprobs) WriteLogprobs(w, answer);
    w.EndObject();
    if (form_.list) w.Field("index", answer.index);
    w.EndObject();
  }

  static void WriteFinishReason(JsonWriter& w, const Answer& answer) {
    if (answer.end == AnswerEnd::kNone) {
      w.Value(nullptr);
      return;
    }
    w.BeginObject();
    if (answer.end == AnswerEnd::kLength) {
      w.Field("type", "length").Field("length", answer.completion_tokens());
    } else {
      w.Field("type", "stop").Key("matched");
      if (answer.stop_text.empty()) {
        w.Value(answer.stop_token);
      } else {
        w.Value(answer.stop_text);
      }
    }
    w.EndObject();
  }

  void WriteLogprobs(JsonWriter& w, const Answer& answer) const {
    if (form_.prompt_logprob_start) {
      const auto& ids = form_.prompts[static_cast<size_t>(answer.prompt)];
      w.Key("input_token_logprobs").BeginArray();
      for (size_t i = static_cast<size_t>(*form_.prompt_logprob_start); i < answer.prompt_logprobs.size();
           ++i)
        WriteEntry(w, ids[i], answer.prompt_logprobs[i]);
      w.EndArray();
    }
    w.Key("output_token_logprobs").BeginArray();
    for (const AnswerToken& token : answer.tokens) WriteEntry(w, token.output.id, token.output.logprob);
    w.EndArray();
    if (!form_.top_logprobs) return;
    w.Key("output_top_logprobs").BeginArray();
    for (const AnswerToken& token : answer.tokens) {
      w.BeginArray();
      for (const engine::TopToken& top : token.output.top) WriteEntry(w, top.id, top.logprob);
      w.EndArray();
    }
    w.EndArray();
  }

  // [log-probability or null, id, text or null]
  void WriteEntry(JsonWriter& w, engine::TokenId id, std::optional<float> logprob) const {
    w.BeginArray();
    if (logprob) {
      w.Value(FiniteLogprob(*logprob));
    } else {
      w.Value(nullptr);
    }
    w.Value(id);
    if (form_.text_in_logprobs) {
      w.Value(TokenText(*context_->tokenizer, id));
    } else {
      w.Value(nullptr);
    }
    w.EndArray();
  }

  std::shared_ptr<const ServingContext> context_;
  GenerateForm form_;
  Clock::time_point start_;
};

}  // namespace

void HandleGenerate(const std::shared_ptr<const ServingContext>& context, const HttpRequest& http,
                    ResponseChannel channel) {
  GenerateRequest request;
  std::optional<ApiError> error = ParseGenerateRequest(http.body, request);
  if (!error) error = CheckModel(*context, request.model);
  GenerationFields& fields = request.generation;
  channel.SetStream(fields.stream);
  GenerationRequest generation;
  GenerateForm form{.id = request.rid.empty() ? RandomId("gen") : request.rid,
                    .list = request.prompt.batch || fields.n > 1,
                    .logprobs = fields.sampling.logprobs,
                    .top_logprobs = fields.sampling.top_logprobs > 0,
                    .prompt_logprob_start = request.logprob_start,
                    .text_in_logprobs = request.text_in_logprobs};
  if (!error) {
    std::string_view prompt_field = request.prompt.texts.empty() ? "input_ids" : "text";
    error = EncodePrompts(*context, std::move(request.prompt), fields.max_tokens, kDefaultMaxTokens,
                          prompt_field, "sampling_params.max_new_tokens", generation);
  }
  if (error) return channel.Fail(*error);

  if (form.prompt_logprob_start) form.prompts = generation.prompts;
  generation.sampling = std::move(fields.sampling);
  generation.n = fields.n;
  generation.answer = {.stop = std::move(fields.stop), .skip_special_tokens = fields.skip_special_tokens};
  auto responder = std::make_unique<GenerateResponder>(context, std::move(form));
  StartGeneration(context, std::move(generation), std::move(channel), std::move(responder));
}

}  // namespace perigee::server
