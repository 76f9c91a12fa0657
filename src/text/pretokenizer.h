#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace perigee::text {

// Cuts a text into the pieces of Kimi's pre-tokenisation pattern and appends them to `pieces`; they tile the
// text. Linear time. A byte that is not part of valid UTF-8 counts as a symbol of its own.
//
// The pattern (Rust regex syntax, leftmost match, alternatives in this order):
//   [\p{Han}]+
//   [^\r\n\p{L}\p{N}]?U*W+(?i:'s|'t|'re|'ve|'m|'ll|'d)?    U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
//   [^\r\n\p{L}\p{N}]?U+W*(?i:'s|'t|'re|'ve|'m|'ll|'d)?    W = [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
//   \p{N}{1,3}
//    ?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+
//   \s+(?!\S)
//   \s+
void SplitPieces(std::string_view text, std::vector<std::string_view>& pieces);

// The cuts that the reference makes before anything else: after 400,000 characters, and inside such a window
// where a run of white space, or of anything else, would pass 25,000 characters. Pieces and special tokens
// never cross a cut. The counts go on from call to call, so that a prompt made of several strings is cut as
// their concatenation.
class TextCutter {
 public:
  static constexpr int64_t kWindow = 400'000;
  static constexpr int64_t kMaxRun = 25'000;

  // Appends the parts of `text` to `parts`; none of them is empty.
  void Cut(std::string_view text, std::vector<std::string_view>& parts);
  // Counts the characters of a template marker, which is never cut itself.
  void Skip(std::string_view marker);

 private:
  // Counts one character; true when there is a cut before it.
  bool Count(uint32_t code);

  int64_t in_window_ = 0;
  int64_t in_run_ = 0;
  bool run_is_space_ = false;
};

}  // namespace perigee::text
