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
// before the stop is released and nothing after it. The stop that is complete first wins, of those complete
// at the same byte the one that begins first: so the outcome does not depend on how the text was cut into
// pieces. Linear in the text for each stop. When pieces and stops are valid UTF-8, so is what is released.
class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that may be shown now; nothing once stopped.
  std::string Push(std::string_view piece);
  // The held-back rest, when generation ended without a match.
  std::string Flush();
  bool stopped() const { return !matched_.empty(); }
  const std::string& matched() const { return matched_; }

 private:
  // One stop string and how much of it the text seen so far ends with.
  struct Stop {
    std::string text;
    std::vector<size_t> borders;  // by length of a prefix: its longest proper prefix that is also its suffix
    size_t seen = 0;
    void Advance(char c);
  };

  std::vector<Stop> stops_;
  std::string held_;
  std::string matched_;
};

}  // namespace perigee::text
