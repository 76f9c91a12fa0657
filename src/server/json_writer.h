#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace perigee::server {

// Writes JSON text front to back. Two promises are kept here for every answer: strings are valid UTF-8 (bad
// bytes become U+FFFD) and numbers are finite. Balancing Begin and End is the caller's part.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view key);

  JsonWriter& Value(std::string_view utf8);
  JsonWriter& Value(const char* utf8) { return Value(std::string_view(utf8)); }
  JsonWriter& Value(const std::string& utf8) { return Value(std::string_view(utf8)); }
  JsonWriter& Value(bool b) { return Literal(b ? "true" : "false"); }
  // Not finite: the largest number of that sign, 0 for NaN.
  JsonWriter& Value(float number);
  JsonWriter& Value(double number);
  JsonWriter& Value(std::nullptr_t) { return Literal("null"); }
  template <std::integral T>
  JsonWriter& Value(T number) {
    return Literal(std::to_string(number));
  }
  template <typename T>
  JsonWriter& Value(const std::optional<T>& value) {
    return value ? Value(*value) : Value(nullptr);
  }

  template <typename T>
  JsonWriter& Field(std::string_view key, const T& value) {
    Key(key);
    return Value(value);
  }

  // The text so far; the writer is empty afterwards.
  std::string Take() {
    comma_ = false;
    return std::exchange(text_, {});
  }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  JsonWriter& Literal(std::string_view text);
  void Comma();
  void Quote(std::string_view utf8);

  std::string text_;
  bool comma_ = false;  // the next item needs one before it
};

// Log-probabilities never leave this range: clients choke on infinities.
inline constexpr float kLowestLogprob = -9999.0f;
float FiniteLogprob(float logprob);

}  // namespace perigee::server
