#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"

namespace perigee::text {

void BpeEncoder::Encode(std::string_view piece, std::vector<TokenId>& ids) {
  if (piece.empty()) return;
  if (const TokenId whole = vocab_.Find(piece); whole >= 0) {
    ids.push_back(whole);
    return;
  }
  PERIGEE_CHECK(piece.size() < std::numeric_limits<uint32_t>::max());
  const uint32_t size = static_cast<uint32_t>(piece.size());
  ends_.resize(size);
  previous_.resize(size);
  merges_.clear();
  for (uint32_t i = 0; i < size; ++i) {
    ends_[i] = i + 1;
    previous_[i] = i - 1;  // of the first one never read
  }
  for (uint32_t i = 0; i + 1 < size; ++i) Offer(piece, i);

  while (!merges_.empty()) {
    std::pop_heap(merges_.begin(), merges_.end(), std::greater<>());
    const Merge merge = merges_.back();
    merges_.pop_back();
    const uint32_t right = ends_[merge.begin];
    // Tokens only grow, so an equal end means the same two tokens as when the merge was offered.
    if (right == 0 || right == size || ends_[right] != merge.end) continue;
    ends_[merge.begin] = merge.end;
    ends_[right] = 0;
    if (merge.end < size) {
      previous_[merge.end] = merge.begin;
      Offer(piece, merge.begin);
    }
    if (merge.begin > 0) Offer(piece, previous_[merge.begin]);
  }
  for (uint32_t i = 0; i < size; i = ends_[i]) ids.push_back(vocab_.Find(piece.substr(i, ends_[i] - i)));
}

// Puts the merge of the token at `begin` with its right neighbour into the heap if it gives a token.
void BpeEncoder::Offer(std::string_view piece, uint32_t begin) {
  const uint32_t end = ends_[ends_[begin]];
  const TokenId rank = vocab_.Find(piece.substr(begin, end - begin));
  if (rank < 0) return;
  merges_.push_back({rank, begin, end});
  std::push_heap(merges_.begin(), merges_.end(), std::greater<>());
}

}  // namespace perigee::text
