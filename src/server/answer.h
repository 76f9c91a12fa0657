#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/tool_calls.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace perigee::server {

enum class AnswerEnd { kNone, kStop, kLength };

struct AnswerToken {
  engine::TokenOutput output;
  int64_t text_offset = 0;  // in characters: where its text begins in the answer
  bool content = true;      // false: part of a tool call, or the stop id
};

// One answer, as far as it has come.
struct Answer {
  int32_t index = 0;   // of the choice in the response
  int32_t prompt = 0;  // which prompt of the request it answers
  std::string text;    // what may be shown: no stop string, no stop id, no tool call
  // All generated tokens up to the one that ended the answer, that one included.
  std::vector<AnswerToken> tokens;
  size_t shown_tokens = 0;  // of `tokens`: those whose text has begun to show, and what lies between them
  std::vector<text::ToolCall> calls;

  AnswerEnd end = AnswerEnd::kNone;
  std::optional<engine::TokenId> stop_token;  // end == kStop: the id that did it,
  std::string stop_text;                      // or the string

  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  std::vector<std::optional<float>> prompt_logprobs;

  int64_t completion_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// What one delivery of the engine added to an answer.
struct AnswerDelta {
  std::string text;
  size_t first_token = 0;  // newly shown: answer.tokens[first_token .. answer.shown_tokens)
  size_t first_call = 0;   // newly finished: answer.calls[first_call ..)
};

struct AnswerOptions {
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  std::optional<ToolPolicy> tools;  // set: parse tool calls (chat)
};

// Turns the engine's deliveries for one answer into text, tool calls and an end. Not thread-safe.
// Stop strings are looked for in the text that is shown, so never inside a tool call and never across one. A
// call that breaks off is shown as text: nobody could read its arguments as JSON.
class AnswerBuilder {
 public:
  AnswerBuilder(const text::Tokenizer& tokenizer, const ToolMarkers& markers, AnswerOptions options,
                int32_t index, int32_t prompt);

  // Takes a delivery that is not a failure. The answer may end by it (a stop string) although the engine has
  // not finished; later deliveries are then ignored.
  AnswerDelta Push(engine::Output output);

  const Answer& answer() const { return answer_; }
  bool ended() const { return answer_.end != AnswerEnd::kNone; }

 private:
  void PushToken(engine::TokenOutput token, AnswerDelta& delta);
  // Sends text through the stop strings; true when one was found.
  bool Show(const std::string& piece, AnswerDelta& delta);
  void Release(std::string text, AnswerDelta& delta);
  void FlushContent(AnswerDelta& delta);
  void EndAtStopText();
  // The last `count` tokens before `end`.
  void ShowBrokenCall(size_t end, size_t count, AnswerDelta& delta);
  void MarkShownTokens();

  AnswerOptions options_;
  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::optional<ToolCallParser> parser_;
  Answer answer_;
  int64_t decoded_chars_ = 0;   // given to the matcher
  int64_t released_chars_ = 0;  // come out of it
  std::string held_space_;      // white space after a tool section: shown only if more follows
};

}  // namespace perigee::server
