#include "text/vocab.h"

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "base/strings.h"

namespace perigee::text {
namespace {

// Value of a base64 digit, or -1.
int Base64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

// Appends the decoded bytes; false unless `text` is canonical padded base64 of at least one byte.
bool DecodeBase64(std::string_view text, std::vector<char>& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int digit = Base64Digit(c);
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out.push_back(static_cast<char>(bits >> held & 0xFF));
    }
  }
  return (bits & ((1u << held) - 1)) == 0;
}

struct Entry {
  int64_t rank;
  int64_t line;
  size_t begin;  // in the bytes of all tokens
  size_t size;
};

Status LineError(const std::string& file, int64_t line, std::string_view what) {
  return InvalidArgument(StrCat(file, " line ", line, ": ", what));
}

StatusOr<Entry> ParseLine(std::string_view line, int64_t number, const std::string& file,
                          std::vector<char>& bytes) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos)
    return LineError(file, number, StrCat(Quoted(line), " is not base64, a space and a rank"));
  Entry entry{0, number, bytes.size(), 0};
  const std::string_view rank = line.substr(space + 1);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), entry.rank);
  if (error != std::errc() || end != rank.data() + rank.size() || entry.rank < 0)
    return LineError(file, number, StrCat("the rank ", Quoted(rank), " is not a whole number from 0"));
  if (!DecodeBase64(line.substr(0, space), bytes))
    return LineError(file, number, StrCat("the token ", Quoted(line.substr(0, space)), " is not base64"));
  entry.size = bytes.size() - entry.begin;
  return entry;
}

}  // namespace

StatusOr<Vocab> Vocab::Parse(std::string_view content, const std::string& file) {
  Vocab vocab;
  vocab.bytes_.reserve(content.size());  // decoded bytes are fewer, so views into it stay valid
  std::vector<Entry> entries;
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t end = content.find('\n');
    std::string_view line = content.substr(0, end);
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    PERIGEE_ASSIGN_OR_RETURN(const Entry entry, ParseLine(line, number, file, vocab.bytes_));
    entries.push_back(entry);
  }
  if (entries.size() > std::numeric_limits<TokenId>::max() / 2)
    return InvalidArgument(StrCat(file, ": ", entries.size(), " tokens are more than ids can number"));

  const int64_t count = static_cast<int64_t>(entries.size());
  vocab.tokens_.resize(entries.size());
  std::vector<int64_t> lines(entries.size(), 0);  // where each rank stands
  for (const Entry& e : entries) {
    if (e.rank >= count)
      return LineError(file, e.line,
                       StrCat("rank ", e.rank, " leaves a gap: the file has ", count,
                              " tokens, so ranks must be 0 to ", count - 1));
    const size_t rank = static_cast<size_t>(e.rank);
    if (lines[rank] != 0)
      return LineError(file, e.line, StrCat("rank ", e.rank, " was already given on line ", lines[rank]));
    lines[rank] = e.line;
    vocab.tokens_[rank] = std::string_view(vocab.bytes_.data() + e.begin, e.size);
  }
  PERIGEE_RETURN_IF_ERROR(vocab.Index(lines, file));
  return vocab;
}

// Fills the look-ups from tokens_; `lines` are the tokens' line numbers.
Status Vocab::Index(const std::vector<int64_t>& lines, const std::string& file) {
  single_bytes_.assign(256, -1);
  ids_.reserve(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view token = tokens_[i];
    const auto [it, inserted] = ids_.emplace(token, static_cast<TokenId>(i));
    if (!inserted) {
      const int64_t other = lines[static_cast<size_t>(it->second)];
      return LineError(
          file, std::max(lines[i], other),
          StrCat("the token ", Quoted(token), " was already given on line ", std::min(lines[i], other)));
    }
    if (token.size() == 1) single_bytes_[static_cast<uint8_t>(token[0])] = static_cast<TokenId>(i);
    max_token_bytes_ = std::max(max_token_bytes_, token.size());
  }
  for (size_t b = 0; b < 256; ++b) {
    if (single_bytes_[b] < 0)
      return InvalidArgument(StrCat(file, ": no token for the single byte ",
                                    Quoted(std::string(1, static_cast<char>(b))), " (", b, ") in its ",
                                    tokens_.size(), " tokens; all 256 bytes are needed"));
  }
  return Status::Ok();
}

}  // namespace perigee::text
