#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace perigee::text {

struct JsonStyle {
  bool sort_keys = false;  // of every object, by code point
  bool compact = false;    // "," and ":" in place of ", " and ": "
};

// Deepest nesting of arrays and objects that is accepted.
inline constexpr int kMaxJsonDepth = 128;

// `json` written again as Python's json.dumps(json.loads(json), ensure_ascii=False) writes it: whole numbers
// of any size digit for digit, other numbers as repr of a double, non-ASCII text as it is, the last of equal
// keys in the first one's place. Fails on what is not JSON (NaN, lone surrogates, bytes that are not UTF-8),
// on nesting deeper than kMaxJsonDepth, and on numbers beyond the range of a double. The text is untrusted;
// `what` names it in errors.
StatusOr<std::string> FormatJson(std::string_view json, const JsonStyle& style, std::string_view what);

}  // namespace perigee::text
