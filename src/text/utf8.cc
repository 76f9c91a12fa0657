#include "text/utf8.h"

#include <algorithm>
#include <string>

#include "text/tokenizer.h"

namespace perigee::text {
namespace {

// Bytes after the lead one, and what the first of them may be (Unicode table 3-7). Later ones are 80..BF.
struct LeadByte {
  uint8_t following;
  uint8_t low;
  uint8_t high;
};

LeadByte ClassifyLead(uint8_t b) {
  if (b >= 0xC2 && b <= 0xDF) return {1, 0x80, 0xBF};
  if (b == 0xE0) return {2, 0xA0, 0xBF};
  if (b == 0xED) return {2, 0x80, 0x9F};  // no surrogates
  if (b >= 0xE1 && b <= 0xEF) return {2, 0x80, 0xBF};
  if (b == 0xF0) return {3, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {3, 0x80, 0xBF};
  if (b == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step DecodeUtf8(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return {Utf8Step::Kind::kChar, 1, first};
  const LeadByte lead = ClassifyLead(first);
  if (lead.following == 0) return {Utf8Step::Kind::kInvalid, 1, 0};
  uint32_t code = first & (0x3F >> lead.following);
  for (uint8_t i = 1; i <= lead.following; ++i) {
    if (i >= bytes.size()) return {Utf8Step::Kind::kIncomplete, i, 0};
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (at(i) < low || at(i) > high) return {Utf8Step::Kind::kInvalid, i, 0};
    code = code << 6 | (at(i) & 0x3F);
  }
  return {Utf8Step::Kind::kChar, static_cast<uint8_t>(lead.following + 1), code};
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = DecodeUtf8(bytes);
    if (step.kind != Utf8Step::Kind::kChar) return false;
    bytes.remove_prefix(step.size);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = DecodeUtf8(bytes);
    out += step.kind == Utf8Step::Kind::kChar ? bytes.substr(0, step.size) : kReplacementCharacter;
    bytes.remove_prefix(step.size);
  }
  return out;
}

}  // namespace perigee::text
