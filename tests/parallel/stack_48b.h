#pragma once

#include <cstddef>
#include <vector>

#include "parallel/token_layout.h"

namespace perigee::test {

inline constexpr size_t kLayers48B = 27;

// The attention kinds of the 48B model: three KDA layers, then one MLA layer; the last layer is MLA.
inline std::vector<parallel::BlockKind> Stack48B() {
  std::vector<parallel::BlockKind> kinds(kLayers48B, parallel::BlockKind::kKda);
  for (const size_t mla : {3, 7, 11, 15, 19, 23, 26}) kinds[mla] = parallel::BlockKind::kMla;
  return kinds;
}

}  // namespace perigee::test
