#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace perigee::text {

// Ids in, valid UTF-8 out, never half a character: an incomplete trailing sequence waits for the next token.
// The concatenation of all pieces and of Flush equals decoding all bytes at once with invalid sequences
// replaced.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  std::string Push(TokenId id);
  // What is left at the end of generation: an incomplete sequence becomes U+FFFD.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;
};

// Whole text of `ids`.
std::string Decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special_tokens);

// Watches a growing text for stop strings. Text that may still become one is held back; at a match the text
// before the earliest one is released and nothing after it.
class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that may be shown now.
  std::string Push(std::string_view piece);
  // The held-back rest, when generation ended without a match.
  std::string Flush();
  bool stopped() const { return !matched_.empty(); }
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
};

}  // namespace perigee::text
