#include "text/pretokenizer.h"

#include "text/unicode_tables.h"
#include "text/utf8.h"

namespace perigee::text {
namespace {

// Stands for a byte that is not UTF-8: a surrogate, so in no class.
constexpr uint32_t kBadByte = 0xD800;

// The character at the start of `bytes`, where a bad byte is a character.
Utf8Step NextChar(std::string_view bytes) {
  const Utf8Step step = DecodeUtf8(bytes);
  if (step.kind == Utf8Step::Kind::kChar) return step;
  return {Utf8Step::Kind::kChar, 1, kBadByte};
}

// Finds the end of one piece at a time. Positions are indices of characters.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : classes_(CharClassTable()) {
    codes_.reserve(text.size());
    offsets_.reserve(text.size() + 1);
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = NextChar(text.substr(at));
      codes_.push_back(step.code);
      offsets_.push_back(at);
      at += step.size;
    }
    offsets_.push_back(text.size());
  }

  size_t size() const { return codes_.size(); }
  size_t Offset(size_t i) const { return offsets_[i]; }

  size_t PieceEnd(size_t p) const {
    if (Is(p, kHan)) return RunEnd(p, kHan);
    if (const size_t end = WordEnd(p); end > p) return end;
    if (Is(p, kNumber)) {
      size_t end = p + 1;
      while (end < p + 3 && Is(end, kNumber)) ++end;
      return end;
    }
    if (const size_t end = SymbolsEnd(p); end > p) return end;
    return SpaceEnd(p);
  }

 private:
  bool Is(size_t i, uint8_t bits) const { return i < codes_.size() && (classes_[codes_[i]] & bits) != 0; }
  bool IsCode(size_t i, uint32_t code) const { return i < codes_.size() && codes_[i] == code; }
  bool IsLineBreak(size_t i) const { return IsCode(i, '\r') || IsCode(i, '\n'); }
  size_t RunEnd(size_t i, uint8_t bits) const {
    while (Is(i, bits)) ++i;
    return i;
  }

  // Alternatives 2 and 3, or p when neither matches.
  size_t WordEnd(size_t p) const {
    const bool prefix = !Is(p, kLetter | kNumber) && !IsLineBreak(p);
    const size_t starts[2] = {p + 1, p};
    // Runs of upper-like characters from p + 1 and from p.
    size_t upper_ends[2];
    for (int k = prefix ? 0 : 1; k < 2; ++k) {
      const size_t start = starts[k];
      const size_t upper_end = upper_ends[k] = RunEnd(start, kUpperLike);
      // Greedy U*, given back until one W follows.
      for (size_t j = upper_end + 1; j-- > start;) {
        if (Is(j, kLowerLike)) return ContractionEnd(RunEnd(j, kLowerLike));
      }
    }
    for (int k = prefix ? 0 : 1; k < 2; ++k) {
      if (upper_ends[k] > starts[k]) return ContractionEnd(RunEnd(upper_ends[k], kLowerLike));
    }
    return p;
  }

  // Past an English contraction at i, or i. Case is ignored, and U+017F folds to s.
  size_t ContractionEnd(size_t i) const {
    if (!IsCode(i, '\'')) return i;
    const auto letter = [&](size_t at, char lower) {
      return IsCode(at, static_cast<uint32_t>(lower)) || IsCode(at, static_cast<uint32_t>(lower - 32));
    };
    const size_t a = i + 1;
    const size_t b = i + 2;
    if (letter(a, 's') || IsCode(a, 0x17F) || letter(a, 't') || letter(a, 'm') || letter(a, 'd')) return b;
    if ((letter(a, 'r') || letter(a, 'v')) && letter(b, 'e')) return b + 1;
    if (letter(a, 'l') && letter(b, 'l')) return b + 1;
    return i;
  }

  // Alternative 5, or p.
  size_t SymbolsEnd(size_t p) const {
    constexpr uint8_t kNotSymbol = kWhiteSpace | kLetter | kNumber;
    const auto is_symbol = [&](size_t i) { return i < codes_.size() && !Is(i, kNotSymbol); };
    size_t i = IsCode(p, ' ') && is_symbol(p + 1) ? p + 1 : p;
    if (!is_symbol(i)) return p;
    while (is_symbol(i)) ++i;
    while (IsLineBreak(i)) ++i;
    return i;
  }

  // Alternatives 6 to 8; p is white space.
  size_t SpaceEnd(size_t p) const {
    const size_t end = RunEnd(p, kWhiteSpace);
    for (size_t i = end; i > p; --i) {
      if (IsLineBreak(i - 1)) return i;
    }
    return end == codes_.size() || end == p + 1 ? end : end - 1;
  }

  const uint8_t* classes_;
  std::vector<uint32_t> codes_;
  std::vector<size_t> offsets_;  // of each character, and the text's size
};

// Python's str.isspace.
bool IsPythonSpace(uint32_t code) {
  return (CharClassTable()[code] & kWhiteSpace) != 0 || (code >= 0x1C && code <= 0x1F);
}

}  // namespace

void SplitPieces(std::string_view text, std::vector<std::string_view>& pieces) {
  const Scanner scanner(text);
  for (size_t p = 0; p < scanner.size();) {
    const size_t end = scanner.PieceEnd(p);
    pieces.push_back(text.substr(scanner.Offset(p), scanner.Offset(end) - scanner.Offset(p)));
    p = end;
  }
}

bool TextCutter::Count(uint32_t code) {
  const bool is_space = IsPythonSpace(code);
  bool cut = false;
  if (in_window_ == kWindow) {
    cut = true;
    in_window_ = 0;
    in_run_ = 0;
  }
  ++in_window_;
  if (is_space == run_is_space_ && in_run_ > 0) {
    if (++in_run_ > kMaxRun) {
      cut = true;
      in_run_ = 1;
    }
  } else {
    run_is_space_ = is_space;
    in_run_ = 1;
  }
  return cut;
}

void TextCutter::Cut(std::string_view text, std::vector<std::string_view>& parts) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextChar(text.substr(at));
    if (Count(step.code) && at > begin) {
      parts.push_back(text.substr(begin, at - begin));
      begin = at;
    }
    at += step.size;
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
}

void TextCutter::Skip(std::string_view marker) {
  std::vector<std::string_view> ignored;
  Cut(marker, ignored);
}

}  // namespace perigee::text
