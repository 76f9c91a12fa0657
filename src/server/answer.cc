#include "server/answer.h"

#include <algorithm>
#include <utility>

namespace perigee::server {
namespace {

int64_t CountChars(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

AnswerBuilder::AnswerBuilder(const text::Tokenizer& tokenizer, const ToolMarkers& markers,
                             AnswerOptions options, int32_t index, int32_t prompt)
    : options_(std::move(options)),
      detokenizer_(tokenizer, options_.skip_special_tokens),
      matcher_(options_.stop) {
  answer_.index = index;
  answer_.prompt = prompt;
  if (options_.tools) parser_.emplace(tokenizer, markers, std::move(*options_.tools));
}

AnswerDelta AnswerBuilder::Push(engine::Output output) {
  AnswerDelta delta{.first_token = answer_.shown_tokens, .first_call = answer_.calls.size()};
  if (ended()) return delta;
  answer_.prompt_tokens = output.prompt_tokens;
  answer_.cached_tokens = output.cached_tokens;
  if (!output.prompt_logprobs.empty()) answer_.prompt_logprobs = std::move(output.prompt_logprobs);

  bool stopped = output.finish == engine::FinishReason::kStop;
  for (size_t i = 0; i < output.tokens.size() && !ended(); ++i) {
    bool is_stop_id = stopped && output.stop_token && i + 1 == output.tokens.size();
    if (is_stop_id) {
      answer_.tokens.push_back(
          {.output = std::move(output.tokens[i]), .text_offset = decoded_chars_, .content = false});
    } else {
      PushToken(std::move(output.tokens[i]), delta);
    }
  }
  if (!ended() && output.finish != engine::FinishReason::kNone) {
    FlushContent(delta);
    if (!ended() && parser_) {
      const size_t stop_ids = output.stop_token && !output.tokens.empty() ? 1 : 0;
      ShowBrokenCall(answer_.tokens.size() - stop_ids, parser_->Finish(), delta);
    }
    if (!ended()) {
      answer_.end = stopped ? AnswerEnd::kStop : AnswerEnd::kLength;
      answer_.stop_token = output.stop_token;
    }
  }
  if (parser_) {
    const auto& calls = parser_->calls();
    answer_.calls.insert(answer_.calls.end(),
                         calls.begin() + static_cast<std::ptrdiff_t>(answer_.calls.size()), calls.end());
  }
  MarkShownTokens();
  return delta;
}

void AnswerBuilder::PushToken(engine::TokenOutput token, AnswerDelta& delta) {
  engine::TokenId id = token.id;
  bool was_content = !parser_ || parser_->in_content();
  bool content = !parser_ || parser_->Push(id);
  answer_.tokens.push_back({.output = std::move(token), .text_offset = decoded_chars_, .content = content});
  if (content) {
    if (Show(detokenizer_.Push(id), delta)) EndAtStopText();
    return;
  }
  if (was_content) FlushContent(delta);
  if (!ended() && !parser_->wants_more()) answer_.end = AnswerEnd::kStop;
}

bool AnswerBuilder::Show(const std::string& piece, AnswerDelta& delta) {
  decoded_chars_ += CountChars(piece);
  Release(matcher_.Push(piece), delta);
  return matcher_.stopped();
}

void AnswerBuilder::Release(std::string text, AnswerDelta& delta) {
  released_chars_ += CountChars(text);
  if (parser_ && parser_->after_section()) {
    held_space_ += text;
    if (held_space_.find_first_not_of(" \t\r\n") == std::string::npos) return;
    text = std::exchange(held_space_, {});
  }
  answer_.text += text;
  delta.text += text;
}

// The content so far is complete: nothing that follows can change it.
void AnswerBuilder::FlushContent(AnswerDelta& delta) {
  if (Show(detokenizer_.Flush(), delta)) return EndAtStopText();
  Release(matcher_.Flush(), delta);
}

void AnswerBuilder::ShowBrokenCall(size_t end, size_t count, AnswerDelta& delta) {
  const auto show = [&](const std::string& piece) {
    decoded_chars_ += CountChars(piece);
    Release(piece, delta);
  };
  for (size_t i = end - count; i < end; ++i) {
    AnswerToken& token = answer_.tokens[i];
    token.text_offset = decoded_chars_;
    token.content = !parser_->IsMarker(token.output.id);
    if (token.content) show(detokenizer_.Push(token.output.id));
  }
  if (count > 0) show(detokenizer_.Flush());
}

void AnswerBuilder::EndAtStopText() {
  answer_.end = AnswerEnd::kStop;
  answer_.stop_text = matcher_.matched();
}

// A token counts as shown once its first character is out; after an end by anything but a stop string all
// are.
void AnswerBuilder::MarkShownTokens() {
  size_t& shown = answer_.shown_tokens;
  const auto& tokens = answer_.tokens;
  bool all = ended() && answer_.stop_text.empty();
  while (shown < tokens.size() && (all || tokens[shown].text_offset < released_chars_)) ++shown;
}

}  // namespace perigee::server
