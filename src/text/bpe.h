#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/vocab.h"

namespace perigee::text {

// Byte-pair encoding by rank: of all adjacent pairs whose concatenation is a token the one of lowest rank is
// merged first, the leftmost of equals. O(n log n) for a piece of n bytes. Holds buffers between calls: one
// object per thread; the vocabulary must outlive it.
class BpeEncoder {
 public:
  explicit BpeEncoder(const Vocab& vocab) : vocab_(vocab) {}

  // Appends the ids of one piece (under 4 GiB) to `ids`.
  void Encode(std::string_view piece, std::vector<TokenId>& ids);

 private:
  // A possible merge. Ordered by rank, then place.
  struct Merge {
    TokenId rank;
    uint32_t begin;
    uint32_t end;
    bool operator>(const Merge& o) const { return rank != o.rank ? rank > o.rank : begin > o.begin; }
  };
  void Offer(std::string_view piece, uint32_t begin);

  const Vocab& vocab_;
  // Tokens of the piece as a list: a token is named by its first byte's position.
  std::vector<uint32_t> ends_;      // where it ends, which names the next one; 0 when it was merged away
  std::vector<uint32_t> previous_;  // the token before it
  std::vector<Merge> merges_;       // heap, lowest first; may hold merges that are no longer possible
};

}  // namespace perigee::text
