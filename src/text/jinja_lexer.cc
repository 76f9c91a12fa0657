#include "text/jinja_lexer.h"

#include <utility>

#include "base/strings.h"

namespace perigee::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

bool IsNameStart(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// Reads the string whose quote stands at `at`; leaves `at` after its end. False when it is not closed.
bool ReadString(std::string_view source, size_t& at, std::string& out) {
  const char quote = source[at++];
  while (at < source.size()) {
    const char c = source[at++];
    if (c == quote) return true;
    if (c != '\\' || at == source.size()) {
      out += c;
      continue;
    }
    const char escaped = source[at++];
    out += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped;
  }
  return false;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  StatusOr<std::vector<JinjaChunk>> Run() {
    while (at_ < source_.size()) {
      size_t open = source_.find('{', at_);
      while (open != std::string_view::npos && !IsTag(open)) open = source_.find('{', open + 1);
      AddText(open);
      if (open == std::string_view::npos) break;
      PERIGEE_RETURN_IF_ERROR(source_[open + 1] == '#' ? ReadComment(open) : ReadTag(open));
    }
    return std::move(chunks_);
  }

 private:
  bool IsTag(size_t open) const {
    if (open + 1 >= source_.size()) return false;
    const char next = source_[open + 1];
    return next == '{' || next == '%' || next == '#';
  }

  // The text from at_ up to `open`, the next tag or npos, without the white space that tags remove.
  void AddText(size_t open) {
    const size_t begin = at_;
    std::string_view text = source_.substr(begin, open == std::string_view::npos ? open : open - begin);
    const char control =
        open != std::string_view::npos && open + 2 < source_.size() ? source_[open + 2] : ' ';
    if (open != std::string_view::npos && control == '-') {
      text = text.substr(0, text.find_last_not_of(kSpace) + 1);
    } else if (open != std::string_view::npos && source_[open + 1] != '{' && control != '+') {
      // Blanks between the start of a line and a block tag.
      const size_t line = text.find_last_not_of(" \t") + 1;
      const bool at_line_start = line > 0 ? text[line - 1] == '\n' : begin == 0 || source_[begin - 1] == '\n';
      if (at_line_start) text = text.substr(0, line);
    }
    if (strip_next_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    strip_next_ = false;
    if (!text.empty()) chunks_.push_back({JinjaChunk::Kind::kText, std::string(text), {}});
  }

  Status Unclosed(size_t open) const {
    return InvalidArgument(StrCat("a tag or string is not closed: ", Quoted(source_.substr(open), 40)));
  }

  // Moves behind a tag whose closing mark of two characters stands at `close`.
  void Finish(size_t close, bool block) {
    const char control = close > 0 ? source_[close - 1] : ' ';
    at_ = close + 2;
    strip_next_ = control == '-';
    if (block && control != '-' && control != '+' && at_ < source_.size() && source_[at_] == '\n') ++at_;
  }

  Status ReadComment(size_t open) {
    const size_t close = source_.find("#}", open + 2);
    if (close == std::string_view::npos) return Unclosed(open);
    Finish(close, true);
    return Status::Ok();
  }

  Status ReadTag(size_t open) {
    const bool block = source_[open + 1] == '%';
    const std::string_view end = block ? "%}" : "}}";
    JinjaChunk chunk{block ? JinjaChunk::Kind::kStatement : JinjaChunk::Kind::kExpression, {}, {}};
    size_t at = open + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    int braces = 0;  // of dict literals, whose "}}" would not end the tag
    while (at < source_.size()) {
      if (braces == 0 && source_.substr(at, 2) == end) {
        if (!chunk.tokens.empty() && (chunk.tokens.back().text == "-" || chunk.tokens.back().text == "+"))
          chunk.tokens.pop_back();
        chunks_.push_back(std::move(chunk));
        Finish(at, block);
        return Status::Ok();
      }
      const char c = source_[at];
      if (kSpace.find(c) != std::string_view::npos) {
        ++at;
        continue;
      }
      if (c == '{') ++braces;
      if (c == '}' && braces > 0) --braces;
      if (!ReadToken(at, chunk.tokens)) return Unclosed(open);
    }
    return Unclosed(open);
  }

  bool ReadToken(size_t& at, std::vector<JinjaToken>& tokens) const {
    const char c = source_[at];
    const size_t begin = at;
    if (c == '\'' || c == '"') {
      tokens.push_back({JinjaToken::Kind::kString, {}});
      return ReadString(source_, at, tokens.back().text);
    }
    const bool number = IsDigit(c);
    if (number || IsNameStart(c)) {
      while (at < source_.size() && (IsNameStart(source_[at]) || IsDigit(source_[at]))) ++at;
    } else {
      ++at;
    }
    const auto kind = number           ? JinjaToken::Kind::kNumber
                      : IsNameStart(c) ? JinjaToken::Kind::kName
                                       : JinjaToken::Kind::kOperator;
    tokens.push_back({kind, std::string(source_.substr(begin, at - begin))});
    return true;
  }

  std::string_view source_;
  size_t at_ = 0;
  bool strip_next_ = false;  // the last tag ended in "-"
  std::vector<JinjaChunk> chunks_;
};

}  // namespace

StatusOr<std::vector<JinjaChunk>> LexJinja(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace perigee::text
