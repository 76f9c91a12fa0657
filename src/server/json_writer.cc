#include "server/json_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/tokenizer.h"

namespace perigee::server {
namespace {

template <typename T>
std::string Shortest(T number) {
  if (std::isnan(number)) return "0";
  constexpr T kMax = std::numeric_limits<T>::max();
  char text[64];
  auto end = std::to_chars(text, text + sizeof text, std::clamp(number, -kMax, kMax)).ptr;
  return std::string(text, end);
}

}  // namespace

JsonWriter& JsonWriter::Key(std::string_view key) {
  Comma();
  Quote(key);
  text_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Value(std::string_view utf8) {
  Comma();
  if (text::IsValidUtf8(utf8)) {
    Quote(utf8);
  } else {
    Quote(text::ReplaceInvalidUtf8(utf8));
  }
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Value(float number) {
  return Literal(Shortest(number));
}

JsonWriter& JsonWriter::Value(double number) {
  return Literal(Shortest(number));
}

JsonWriter& JsonWriter::Open(char bracket) {
  Comma();
  text_ += bracket;
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  text_ += bracket;
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Literal(std::string_view text) {
  Comma();
  text_ += text;
  comma_ = true;
  return *this;
}

void JsonWriter::Comma() {
  if (comma_) text_ += ',';
}

void JsonWriter::Quote(std::string_view utf8) {
  static constexpr char kHex[] = "0123456789abcdef";
  text_ += '"';
  for (char c : utf8) {
    switch (c) {
      case '"':
        text_ += "\\\"";
        break;
      case '\\':
        text_ += "\\\\";
        break;
      case '\n':
        text_ += "\\n";
        break;
      case '\r':
        text_ += "\\r";
        break;
      case '\t':
        text_ += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          text_ += "\\u00";
          text_ += kHex[c >> 4];
          text_ += kHex[c & 15];
        } else {
          text_ += c;
        }
    }
  }
  text_ += '"';
}

float FiniteLogprob(float logprob) {
  return logprob > kLowestLogprob ? std::min(logprob, 0.0f) : kLowestLogprob;
}

}  // namespace perigee::server
