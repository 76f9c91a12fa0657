#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace perigee::server {

// Ids of the form that the model knows, "functions.{name}:{n}", unique over a conversation, n counting up.
class ToolCallIds {
 public:
  // `id` as it stands when it is well formed (any text that ends in ":" and digits) and new, else a fresh one
  // for `name`.
  std::string Claim(std::string_view id, std::string_view name);
  // The same for an id from a client's history: only the model's own form for this very name is kept.
  std::string ClaimFromHistory(std::string_view id, std::string_view name);

 private:
  std::string Fresh(std::string_view name);

  std::set<std::string, std::less<>> used_;
  int64_t next_ = 0;
};

// Brings the tool-call ids of a conversation into the model's form, those of the tool messages along with
// them. Returns what is taken, for the calls of the answer.
ToolCallIds NormaliseToolCallIds(std::vector<text::ChatMessage>& messages);

// The name in "functions.a.b:3": without that prefix and without the number.
std::string FunctionName(std::string_view id);

// What a chat request lets the model call.
struct ToolPolicy {
  std::vector<std::string>
      names;             // calls of anything else are not delivered; empty: what they say is content
  bool parallel = true;  // false: the answer ends with its first call
  ToolCallIds ids;
};

// The control ids of the tool-call grammar. A marker that the tokenizer does not have never occurs.
struct ToolMarkers {
  std::vector<text::TokenId> section_begin;
  std::vector<text::TokenId> section_end;
  std::optional<text::TokenId> call_begin;
  std::optional<text::TokenId> argument_begin;
  std::optional<text::TokenId> call_end;

  static ToolMarkers Find(const text::Tokenizer& tokenizer);
};

// Splits the ids of a chat answer into content and tool calls. Works on ids, so that text that spells a
// marker stays text. Nothing of a section is content, unless the request offers no tools, and no marker ever
// is.
class ToolCallParser {
 public:
  ToolCallParser(const text::Tokenizer& tokenizer, const ToolMarkers& markers, ToolPolicy policy);

  // True when the id is content, which the caller then shows.
  bool Push(text::TokenId id);
  // The end of the output. A call that is whole but for its end mark is delivered; of one that broke off
  // before its arguments were JSON, how many ids at the end of the output belong to it.
  size_t Finish();
  bool IsMarker(text::TokenId id) const;

  bool in_content() const { return state_ == State::kContent; }
  bool after_section() const { return after_section_; }
  // Finished calls, in order.
  const std::vector<text::ToolCall>& calls() const { return calls_; }
  bool wants_more() const { return policy_.parallel || calls_.empty(); }

 private:
  enum class State { kContent, kSection, kHeader, kArguments };

  void FinishCall();

  const text::Tokenizer* tokenizer_;
  const ToolMarkers* markers_;
  ToolPolicy policy_;
  State state_ = State::kContent;
  bool after_section_ = false;
  std::vector<text::TokenId> header_;
  std::vector<text::TokenId> arguments_;
  size_t call_ids_ = 0;  // of the present call so far, its markers included
  std::vector<text::ToolCall> calls_;
};

}  // namespace perigee::server
