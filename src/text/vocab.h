#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace perigee::text {

// The ordinary tokens of a tiktoken.model file: a token's rank is its id. Immutable; movable.
class Vocab {
 public:
  // `file` names the file in errors, which give the line. Lines are base64 of the bytes, one space, the
  // decimal rank; empty lines are skipped. Ranks must be 0 to n-1 in any order, tokens distinct and not
  // empty, and every single byte must be a token.
  static StatusOr<Vocab> Parse(std::string_view content, const std::string& file);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // `id` in [0, size()).
  std::string_view Bytes(TokenId id) const { return tokens_[static_cast<size_t>(id)]; }
  // The id of a token, or -1.
  TokenId Find(std::string_view bytes) const {
    if (bytes.size() == 1) return single_bytes_[static_cast<uint8_t>(bytes[0])];
    if (bytes.size() > max_token_bytes_) return -1;
    const auto it = ids_.find(bytes);
    return it == ids_.end() ? -1 : it->second;
  }

 private:
  Vocab() = default;
  Status Index(const std::vector<int64_t>& lines, const std::string& file);

  std::vector<char> bytes_;               // of all tokens
  std::vector<std::string_view> tokens_;  // by id, into bytes_
  std::unordered_map<std::string_view, TokenId> ids_;
  std::vector<TokenId> single_bytes_;  // 256 ids
  size_t max_token_bytes_ = 0;
};

}  // namespace perigee::text
