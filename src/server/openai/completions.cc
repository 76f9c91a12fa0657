#include "server/openai/completions.h"

#include <algorithm>
#include <set>
#include <utility>

#include "server/generation.h"
#include "server/openai/completion_request.h"
#include "server/openai/format.h"
#include "server/prompts.h"
#include "text/detokenizer.h"

namespace perigee::server {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;

// The tokens that one choice lists with their log-probabilities, in the order of the text.
struct TokenList {
  struct Entry {
    engine::TokenId id = 0;
    std::optional<float> logprob;
    const std::vector<engine::TopToken>* top = nullptr;  // null: a prompt token, which has no alternatives
    int64_t text_offset = 0;
  };
  std::vector<Entry> entries;
};

// A prompt to be echoed.
struct Echo {
  std::vector<engine::TokenId> ids;
  std::vector<int64_t> offsets;  // in characters, per id
  std::string text;
  int64_t chars = 0;
};

Echo MakeEcho(const text::Tokenizer& tokenizer, const std::vector<engine::TokenId>& ids) {
  Echo echo{.ids = ids};
  text::IncrementalDetokenizer detokenizer(tokenizer, false);
  auto append = [&](const std::string& piece) {
    echo.text += piece;
    echo.chars += std::count_if(piece.begin(), piece.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  for (engine::TokenId id : ids) {
    echo.offsets.push_back(echo.chars);
    append(detokenizer.Push(id));
  }
  append(detokenizer.Flush());
  return echo;
}

class CompletionResponder : public Responder {
 public:
  CompletionResponder(std::shared_ptr<const ServingContext> context, std::vector<Echo> echoes,
                      std::optional<int32_t> top_logprobs, bool include_usage)
      : context_(std::move(context)),
        head_(NewResponseHead(*context_, "cmpl")),
        echoes_(std::move(echoes)),
        top_logprobs_(top_logprobs),
        include_usage_(include_usage) {}

  void OnStart(ResponseChannel&, const Answer&) override {}

  void OnDelta(ResponseChannel& channel, const Answer& answer, const AnswerDelta& delta) override {
    if (!channel.stream()) return;
    // The prompt's log-probabilities come with the first delivery, so the echo waits for it.
    bool first = begun_.insert(answer.index).second;
    TokenList tokens;
    std::string text = delta.text;
    if (const Echo* echo = EchoOf(answer); echo && first) {
      text = echo->text + text;
      AddPromptTokens(*echo, answer, tokens);
    }
    AddTokens(answer, delta.first_token, tokens);
    bool anything = !text.empty() || (top_logprobs_ && !tokens.entries.empty());
    if (!anything && answer.end == AnswerEnd::kNone) return;
    JsonWriter w;
    BeginResponse(w, head_, "text_completion");
    w.Key("choices").BeginArray();
    WriteChoice(w, answer, text, tokens);
    w.EndArray();
    // The last chunk alone has the numbers; the others say so.
    if (include_usage_) w.Field("usage", nullptr);
    w.EndObject();
    channel.Event(w.Take());
  }

  void OnEnd(ResponseChannel& channel, const std::vector<const Answer*>& answers,
             const Usage& usage) override {
    JsonWriter w;
    if (channel.stream() && !include_usage_) return channel.EndStream();
    BeginResponse(w, head_, "text_completion");
    w.Key("choices").BeginArray();
    if (!channel.stream()) {
      for (const Answer* answer : answers) WriteWholeChoice(w, *answer);
    }
    w.EndArray().Key("usage");
    WriteUsage(w, usage);
    w.EndObject();
    if (!channel.stream()) return channel.SendBody(w.Take());
    channel.Event(w.Take());
    channel.EndStream();
  }

 private:
  const Echo* EchoOf(const Answer& answer) const {
    return echoes_.empty() ? nullptr : &echoes_[static_cast<size_t>(answer.prompt)];
  }

  void WriteWholeChoice(JsonWriter& w, const Answer& answer) const {
    TokenList tokens;
    std::string text;
    if (const Echo* echo = EchoOf(answer)) {
      text = echo->text;
      AddPromptTokens(*echo, answer, tokens);
    }
    AddTokens(answer, 0, tokens);
    WriteChoice(w, answer, text + answer.text, tokens);
  }

  void WriteChoice(JsonWriter& w, const Answer& answer, const std::string& text,
                   const TokenList& tokens) const {
    w.BeginObject().Field("index", answer.index).Field("text", text).Key("logprobs");
    if (top_logprobs_) {
      WriteLogprobs(w, tokens);
    } else {
      w.Value(nullptr);
    }
    w.Field("finish_reason", FinishReason(answer)).EndObject();
  }

  void AddPromptTokens(const Echo& echo, const Answer& answer, TokenList& tokens) const {
    if (!top_logprobs_) return;
    for (size_t i = 0; i < echo.ids.size(); ++i) {
      std::optional<float> logprob;
      if (i < answer.prompt_logprobs.size()) logprob = answer.prompt_logprobs[i];
      tokens.entries.push_back({echo.ids[i], logprob, nullptr, echo.offsets[i]});
    }
  }

  void AddTokens(const Answer& answer, size_t first, TokenList& tokens) const {
    const Echo* echo = EchoOf(answer);
    for (size_t i = first; i < answer.shown_tokens; ++i) {
      const AnswerToken& token = answer.tokens[i];
      if (!token.content) continue;
      tokens.entries.push_back({token.output.id, token.output.logprob, &token.output.top,
                                token.text_offset + (echo ? echo->chars : 0)});
    }
  }

  void WriteLogprobs(JsonWriter& w, const TokenList& tokens) const {
    w.BeginObject().Key("tokens").BeginArray();
    for (const auto& t : tokens.entries) w.Value(TokenText(*context_->tokenizer, t.id));
    w.EndArray().Key("token_logprobs").BeginArray();
    for (const auto& t : tokens.entries) {
      if (t.logprob) {
        w.Value(FiniteLogprob(*t.logprob));
      } else {
        w.Value(nullptr);
      }
    }
    w.EndArray().Key("top_logprobs");
    if (*top_logprobs_ == 0) {
      w.Value(nullptr);
    } else {
      w.BeginArray();
      for (const auto& t : tokens.entries) WriteTop(w, t);
      w.EndArray();
    }
    w.Key("text_offset").BeginArray();
    for (const auto& t : tokens.entries) w.Value(t.text_offset);
    w.EndArray().EndObject();
  }

  // The most probable tokens, and the chosen one if it is not among them.
  void WriteTop(JsonWriter& w, const TokenList::Entry& token) const {
    if (!token.logprob) {
      w.Value(nullptr);
      return;
    }
    bool listed = false;
    w.BeginObject();
    if (token.top) {
      for (const engine::TopToken& top : *token.top) {
        listed |= top.id == token.id;
        w.Field(TokenText(*context_->tokenizer, top.id), FiniteLogprob(top.logprob));
      }
    }
    if (!listed) w.Field(TokenText(*context_->tokenizer, token.id), FiniteLogprob(*token.logprob));
    w.EndObject();
  }

  std::shared_ptr<const ServingContext> context_;
  ResponseHead head_;
  std::vector<Echo> echoes_;  // per prompt; empty: no echo
  std::optional<int32_t> top_logprobs_;
  bool include_usage_;
  std::set<int32_t> begun_;  // answers that have had a delivery
};

}  // namespace

void HandleCompletions(const std::shared_ptr<const ServingContext>& context, const HttpRequest& http,
                       ResponseChannel channel) {
  CompletionRequest request;
  std::optional<ApiError> error = ParseCompletionRequest(http.body, request);
  if (!error) error = CheckModel(*context, request.model);
  GenerationFields& fields = request.generation;
  channel.SetStream(fields.stream);
  GenerationRequest generation;
  if (!error)
    error = EncodePrompts(*context, std::move(request.prompt), fields.max_tokens, kDefaultMaxTokens, "prompt",
                          "max_tokens", generation);
  if (error) return channel.Fail(*error);

  std::vector<Echo> echoes;
  if (request.echo) {
    for (const auto& ids : generation.prompts) echoes.push_back(MakeEcho(*context->tokenizer, ids));
  }
  std::optional<int32_t> top_logprobs;
  if (fields.sampling.logprobs) top_logprobs = fields.sampling.top_logprobs;
  generation.sampling = std::move(fields.sampling);
  generation.n = fields.n;
  generation.answer = {.stop = std::move(fields.stop), .skip_special_tokens = fields.skip_special_tokens};
  auto responder =
      std::make_unique<CompletionResponder>(context, std::move(echoes), top_logprobs, request.include_usage);
  StartGeneration(context, std::move(generation), std::move(channel), std::move(responder));
}

}  // namespace perigee::server
