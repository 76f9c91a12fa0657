#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace perigee::text {

// An entry of tokenizer_config.json's added_tokens_decoder.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  std::optional<bool> special;
};

// The entries of added_tokens_decoder, in the file's order. Empty for an empty text and for a file without
// them. `file` names the file in errors.
StatusOr<std::vector<AddedToken>> ParseAddedTokens(std::string_view tokenizer_config,
                                                   const std::string& file);

// The 256 special tokens that follow the ranks. A name comes from tokenizer_config.json, else from the
// family's table by offset, else it is <|reserved_token_{id}|>. Immutable; movable.
class SpecialTokens {
 public:
  static constexpr int64_t kCount = 256;

  // `first_id` is the number of ranks. Fails when two ids would have one name or a name is empty;
  // entries for other ids are left out with a warning, as the reference ignores them.
  static StatusOr<SpecialTokens> Create(int64_t first_id, const std::vector<AddedToken>& added,
                                        const std::string& file);

  TokenId first_id() const { return first_id_; }
  bool Contains(TokenId id) const { return id >= first_id_ && id < first_id_ + kCount; }
  // `id` must be contained.
  const std::string& Name(TokenId id) const { return names_[static_cast<size_t>(id - first_id_)]; }
  bool Skipped(TokenId id) const { return skipped_[static_cast<size_t>(id - first_id_)]; }
  std::optional<TokenId> Find(std::string_view name) const;

  struct Match {
    size_t begin;
    TokenId id;
  };
  // The first special name in `text` at or after `from`; the longest one if several begin there.
  std::optional<Match> FindIn(std::string_view text, size_t from) const;

 private:
  SpecialTokens() = default;
  Status TakeNames(const std::vector<AddedToken>& added, const std::string& file);
  // The longest name that `text` begins with.
  std::optional<TokenId> LongestPrefix(std::string_view text) const;

  TokenId first_id_ = 0;
  std::vector<std::string> names_;
  std::vector<bool> skipped_;
  std::vector<TokenId> by_name_;    // sorted by name
  std::array<bool, 256> begins_{};  // bytes that begin a name
};

}  // namespace perigee::text
