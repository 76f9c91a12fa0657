#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/context.h"

namespace perigee::kernels {

// Elements below which a second thread does not pay: light = a few operations an element, heavy =
// exponentials.
inline constexpr int64_t kLightGrain = 32768;
inline constexpr int64_t kHeavyGrain = 8192;

// Runs body(begin, end) over row ranges that cover [0, rows), a range being at least about `grain` elements
// of `cols` a row: small problems stay on the calling thread.
template <typename Body>
void ParallelRows(const KernelContext& context, int64_t rows, int64_t cols, int64_t grain, const Body& body) {
  context.pool->ParallelRanges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(1, cols)), body);
}

}  // namespace perigee::kernels
