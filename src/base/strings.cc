#include "base/strings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

namespace perigee {

namespace internal {
void Append(std::string& out, double v) {
  std::array<char, 32> buf;
  auto [end, ec] = std::to_chars(buf.data(), buf.data() + buf.size(), v);
  out.append(buf.data(), ec == std::errc() ? end : buf.data());
}
}  // namespace internal

std::string StrJoin(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (const std::string& p : parts) {
    if (&p != parts.data()) out += separator;
    out += p;
  }
  return out;
}

std::string ShapeString(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

std::string WithThousands(uint64_t v) {
  std::string digits = std::to_string(v);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::string Quoted(std::string_view text, size_t max_bytes) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    if (i >= max_bytes) {
      out += "...";
      break;
    }
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c >= 0x7f) {
      std::array<char, 5> buf;
      std::snprintf(buf.data(), buf.size(), "\\x%02x", c);
      out += buf.data();
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

std::string HumanBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = static_cast<double>(bytes);
  size_t unit = 0;
  while (v >= 1024 && unit + 1 < kUnits.size()) {
    v /= 1024;
    ++unit;
  }
  std::array<char, 32> buf;
  std::snprintf(buf.data(), buf.size(), unit == 0 ? "%.0f %s" : "%.2f %s", v, kUnits[unit]);
  return buf.data();
}

std::string TextPosition(std::string_view text, size_t read) {
  const std::string_view before = text.substr(0, std::min(read == 0 ? 0 : read - 1, text.size()));
  const size_t line_begin = before.rfind('\n') + 1;  // 0 where there is none: npos + 1
  return StrCat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
                before.size() - line_begin + 1);
}

}  // namespace perigee
