#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perigee::text {

using TokenId = int32_t;

// Byte-level BPE in the tiktoken text form with Kimi's pre-tokenisation and special tokens. Immutable after
// loading; safe to use from several threads.
class Tokenizer {
 public:
  enum class Specials { kRecognise, kPlainText };

  // Reads tiktoken.model and, if present, tokenizer_config.json (names and flags of special tokens) of a
  // model folder.
  static StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder);
  // From the files' contents; tokenizer_config may be empty. `where` names the folder in errors.
  static StatusOr<std::unique_ptr<Tokenizer>> FromText(std::string_view tiktoken_model,
                                                       std::string_view tokenizer_config,
                                                       const std::string& where);
  virtual ~Tokenizer() = default;

  // Ids of `utf8`, which should be valid UTF-8 (the caller has checked or replaced; a bad byte is kept as a
  // symbol of its own). With kRecognise the names of special tokens in the text become their ids, as in the
  // reference tokenizer, the longest of those that begin at one place; with kPlainText they are ordinary
  // text. Adds no BOS. Time is n log n at worst; the reference's cuts of very long texts are kept.
  virtual std::vector<TokenId> Encode(std::string_view utf8, Specials specials) const = 0;

  // Number of ids: ranks plus special tokens.
  virtual int64_t vocab_size() const = 0;
  virtual int64_t num_ranks() const = 0;
  // The token's bytes: arbitrary for ordinary ids, the name for special ones. Empty for ids outside [0,
  // vocab_size).
  virtual std::string_view Bytes(TokenId id) const = 0;
  // Special tokens by name: "<|im_end|>".
  virtual std::optional<TokenId> SpecialId(std::string_view name) const = 0;
  // True for ids that skip_special_tokens drops: the special ones whose file entry does not say "special":
  // false (the tool-call markers do, and are so without a file too).
  virtual bool IsSkippedSpecial(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
};

// True when `bytes` is valid UTF-8 (no surrogates, no overlong forms, nothing above U+10FFFF).
bool IsValidUtf8(std::string_view bytes);
// Invalid sequences replaced by U+FFFD, as Python's errors="replace" does.
std::string ReplaceInvalidUtf8(std::string_view bytes);

}  // namespace perigee::text
