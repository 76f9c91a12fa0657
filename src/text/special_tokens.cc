#include "text/special_tokens.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace perigee::text {
namespace {

struct DefaultName {
  size_t offset;
  std::string_view name;
  bool skipped;
};

// Kimi-Linear's table (ids 163584 and on), for folders whose file lacks entries. The tool-call markers are
// not "special" to skip_special_tokens.
constexpr DefaultName kDefaultNames[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|im_end|>", true},
    {3, "<|im_user|>", true},
    {4, "<|im_assistant|>", true},
    {6, "<|start_header_id|>", true},
    {7, "<|end_header_id|>", true},
    {9, "[EOT]", true},
    {10, "<|im_system|>", true},
    {11, "<|tool_calls_section_begin|>", false},
    {12, "<|tool_calls_section_end|>", false},
    {13, "<|tool_call_begin|>", false},
    {14, "<|tool_call_argument_begin|>", false},
    {15, "<|tool_call_end|>", false},
    {17, "<|im_middle|>", true},
    {254, "[UNK]", true},
    {255, "[PAD]", true},
};

}  // namespace

StatusOr<SpecialTokens> SpecialTokens::Create(int64_t first_id, const std::vector<AddedToken>& added,
                                              const std::string& file) {
  SpecialTokens made;
  made.first_id_ = static_cast<TokenId>(first_id);
  made.names_.resize(kCount);
  made.skipped_.assign(kCount, true);
  PERIGEE_RETURN_IF_ERROR(made.TakeNames(added, file));
  for (int64_t i = 0; i < kCount; ++i) {
    std::string& name = made.names_[static_cast<size_t>(i)];
    if (name.empty()) name = StrCat("<|reserved_token_", first_id + i, "|>");
    made.by_name_.push_back(static_cast<TokenId>(first_id + i));
    made.begins_[static_cast<uint8_t>(name[0])] = true;
  }
  std::sort(made.by_name_.begin(), made.by_name_.end(),
            [&](TokenId a, TokenId b) { return made.Name(a) < made.Name(b); });
  for (size_t i = 1; i < made.by_name_.size(); ++i) {
    if (made.Name(made.by_name_[i]) == made.Name(made.by_name_[i - 1]))
      return InvalidArgument(StrCat(file, ": ids ", made.by_name_[i - 1], " and ", made.by_name_[i],
                                    " are both named ", Quoted(made.Name(made.by_name_[i]))));
  }
  return made;
}

// Names and flags from the file, then from the table where the file says nothing.
Status SpecialTokens::TakeNames(const std::vector<AddedToken>& added, const std::string& file) {
  std::unordered_set<std::string_view> taken;
  std::vector<std::optional<bool>> flags(kCount);
  size_t outside = 0;
  for (const AddedToken& token : added) {
    if (token.id < first_id_ || token.id >= first_id_ + kCount) {
      ++outside;
      continue;
    }
    const std::string where = StrCat(file, ": added_tokens_decoder entry ", token.id);
    const size_t offset = static_cast<size_t>(token.id - first_id_);
    if (token.content.empty()) return InvalidArgument(StrCat(where, " has an empty content"));
    if (!names_[offset].empty()) return InvalidArgument(StrCat(where, " is given twice"));
    if (!taken.insert(token.content).second)
      return InvalidArgument(StrCat(where, ": another entry is also named ", Quoted(token.content)));
    names_[offset] = token.content;
    flags[offset] = token.special;
  }
  if (outside > 0) {
    LogWarning(StrCat(file, ": ", outside, " entries of added_tokens_decoder are outside the special ids ",
                      first_id_, " to ", first_id_ + kCount - 1, " and are ignored"));
  }
  for (const DefaultName& d : kDefaultNames) {
    std::string& name = names_[d.offset];
    if (name.empty() && !taken.contains(d.name)) name = d.name;
    if (name == d.name) skipped_[d.offset] = d.skipped;
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i].has_value()) skipped_[i] = *flags[i];
  }
  return Status::Ok();
}

std::optional<TokenId> SpecialTokens::Find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](TokenId id, std::string_view n) { return Name(id) < n; });
  if (it == by_name_.end() || Name(*it) != name) return std::nullopt;
  return *it;
}

std::optional<TokenId> SpecialTokens::LongestPrefix(std::string_view text) const {
  std::optional<TokenId> found;
  auto low = by_name_.begin();
  auto high = by_name_.end();
  // After n steps [low, high) are the names that share their first n bytes with the text.
  for (size_t n = 0; low != high; ++n) {
    if (Name(*low).size() == n) found = *low++;
    if (n == text.size()) break;
    const auto byte_at = [&](TokenId id) { return static_cast<uint8_t>(Name(id)[n]); };
    const uint8_t byte = static_cast<uint8_t>(text[n]);
    low = std::lower_bound(low, high, byte, [&](TokenId id, uint8_t b) { return byte_at(id) < b; });
    high = std::upper_bound(low, high, byte, [&](uint8_t b, TokenId id) { return b < byte_at(id); });
  }
  return found;
}

std::optional<SpecialTokens::Match> SpecialTokens::FindIn(std::string_view text, size_t from) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (!begins_[static_cast<uint8_t>(text[i])]) continue;
    if (const auto id = LongestPrefix(text.substr(i))) return Match{i, *id};
  }
  return std::nullopt;
}

}  // namespace perigee::text
