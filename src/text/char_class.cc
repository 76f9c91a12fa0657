#include <vector>

#include "text/unicode_tables.h"

namespace perigee::text {

const uint8_t* CharClassTable() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> made(kMaxCodePoint + 1);
    for (size_t i = 0; i < internal::kNumClassRanges; ++i) {
      const uint32_t last =
          i + 1 < internal::kNumClassRanges ? internal::kClassRanges[i + 1].first : kMaxCodePoint + 1;
      for (uint32_t c = internal::kClassRanges[i].first; c < last; ++c)
        made[c] = internal::kClassRanges[i].bits;
    }
    return made;
  }();
  return table.data();
}

}  // namespace perigee::text
