#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace perigee {

namespace internal {
void Append(std::string& out, double v);
template <typename T>
void AppendPiece(std::string& out, const T& v) {
  if constexpr (std::is_same_v<T, bool>) {
    out += v ? "true" : "false";
  } else if constexpr (std::is_same_v<T, char>) {
    out += v;
  } else if constexpr (std::is_floating_point_v<T>) {
    Append(out, static_cast<double>(v));
  } else if constexpr (std::is_integral_v<T>) {
    out += std::to_string(v);
  } else {
    out += std::string_view(v);
  }
}
}  // namespace internal

// Concatenation for messages: numbers print in their shortest form.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::string out;
  (internal::AppendPiece(out, args), ...);
  return out;
}

std::string StrJoin(std::span<const std::string> parts, std::string_view separator);
// "[2, 3, 4]": how shapes are printed everywhere.
std::string ShapeString(std::span<const int64_t> shape);
// 1234567 -> "1,234,567"
std::string WithThousands(uint64_t v);
// A caller's text inside one line of an error: control characters escaped, invalid UTF-8 replaced, long text
// cut.
std::string Quoted(std::string_view text, size_t max_bytes = 80);
// "1.50 MiB"
std::string HumanBytes(uint64_t bytes);
// Where a parser stopped in a text of lines: "line 3, column 7", both counted from 1, columns in bytes.
// `read`: bytes that it has read, the wrong one the last of them.
std::string TextPosition(std::string_view text, size_t read);

}  // namespace perigee
