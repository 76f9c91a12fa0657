#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee::text {

// Classes of the pre-tokenisation pattern, one bit each. "Like" as in the pattern: letters without case and
// marks are in both of the first two, Han characters in neither.
enum CharClass : uint8_t {
  kUpperLike = 1,    // Lu, Lt, Lm, Lo, M, not Han
  kLowerLike = 2,    // Ll, Lm, Lo, M, not Han
  kLetter = 4,       // L, Han included
  kNumber = 8,       // Nd, Nl, No, Han included
  kWhiteSpace = 16,  // property White_Space
  kHan = 32,         // property Script=Han
};

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

// Class bits of every code point, indexed by it (kMaxCodePoint + 1 entries). Made on first use; any thread.
const uint8_t* CharClassTable();

namespace internal {
// Code points from `first` to the next range's first have the class bits `bits`. Unicode 16.0.
struct ClassRange {
  uint32_t first;
  uint8_t bits;
};
extern const ClassRange kClassRanges[];
extern const size_t kNumClassRanges;
}  // namespace internal

}  // namespace perigee::text
