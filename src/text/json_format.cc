#include "text/json_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace perigee::text {
namespace {

// repr of a finite double in Python: the shortest digits that read back; an exponent below -4 and from 16.
std::string PythonFloat(double value) {
  std::array<char, 40> buffer;
  const auto scientific =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string text(buffer.data(), scientific.ptr);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string out(buffer.data(), fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void AppendQuoted(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          std::array<char, 8> escape;
          std::snprintf(escape.data(), escape.size(), "\\u%04x", c);
          out += escape.data();
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

// Writes values as the parser meets them; needs no tree and no recursion.
class Writer : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  std::string result;
  std::string error;

  bool null() override { return Value("null"); }
  bool boolean(bool v) override { return Value(v ? "true" : "false"); }
  bool number_integer(number_integer_t v) override { return Value(std::to_string(v)); }
  bool number_unsigned(number_unsigned_t v) override { return Value(std::to_string(v)); }
  bool number_float(number_float_t v, const std::string& digits) override {
    // A whole number beyond 64 bits arrives here too.
    return Value(digits.find_first_of(".eE") == std::string::npos ? digits : PythonFloat(v));
  }
  bool string(std::string& v) override {
    std::string quoted;
    AppendQuoted(v, quoted);
    return Value(std::move(quoted));
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(true); }
  bool start_array(std::size_t) override { return Open(false); }
  bool key(std::string& k) override {
    frames_.back().key = k;
    return true;
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    error = e.id == 406 ? StrCat("a number beyond the range of a double ends at byte ", position)
                        : StrCat("not valid JSON at byte ", position);
    return false;
  }

 private:
  struct Frame {
    bool object;
    std::string key;                                         // of the value to come
    std::vector<std::pair<std::string, std::string>> items;  // key (objects only) and written value
    std::unordered_map<std::string, size_t> place;           // of each key in items
  };

  bool Value(std::string text) {
    if (frames_.empty()) {
      result = std::move(text);
      return true;
    }
    Frame& frame = frames_.back();
    if (frame.object) {
      const auto [it, inserted] = frame.place.emplace(frame.key, frame.items.size());
      if (!inserted) {
        frame.items[it->second].second = std::move(text);
        return true;
      }
    }
    frame.items.emplace_back(std::move(frame.key), std::move(text));
    return true;
  }

  bool Open(bool object) {
    if (static_cast<int>(frames_.size()) == kMaxJsonDepth) {
      error = StrCat("nested deeper than ", kMaxJsonDepth, " levels");
      return false;
    }
    frames_.push_back({object, {}, {}, {}});
    return true;
  }

  bool Close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.object && style_.sort_keys)
      std::sort(frame.items.begin(), frame.items.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string text(1, frame.object ? '{' : '[');
    for (const auto& [name, value] : frame.items) {
      if (text.size() > 1) text += style_.compact ? "," : ", ";
      if (frame.object) {
        AppendQuoted(name, text);
        text += style_.compact ? ":" : ": ";
      }
      text += value;
    }
    text += frame.object ? '}' : ']';
    return Value(std::move(text));
  }

  JsonStyle style_;
  std::vector<Frame> frames_;
};

}  // namespace

StatusOr<std::string> FormatJson(std::string_view json, const JsonStyle& style, std::string_view what) {
  Writer writer(style);
  // The writer reports errors itself; nothing is thrown but for lack of memory.
  if (!nlohmann::json::sax_parse(json, &writer)) return InvalidArgument(StrCat(what, ": ", writer.error));
  return std::move(writer.result);
}

}  // namespace perigee::text
