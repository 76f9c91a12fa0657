#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace perigee::text {

// What stands at the start of some bytes. An invalid sequence is as long as its "maximal subpart"
// (Unicode 3.9, what Python replaces by one U+FFFD): at least one byte, and no byte that could begin a
// character.
struct Utf8Step {
  enum class Kind : uint8_t {
    kChar,        // a whole character
    kInvalid,     // `size` bytes that no continuation can save
    kIncomplete,  // all the bytes given, which more bytes could complete
  };
  Kind kind;
  uint8_t size;   // 1 to 4
  uint32_t code;  // kChar only
};

// `bytes` must not be empty.
Utf8Step DecodeUtf8(std::string_view bytes);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace perigee::text
