#pragma once

#include <cstdint>
#include <span>

namespace perigee::comm {

// out[i] = the sum over ranks r of operands[r][i], i in [0, n). The order is the binary tree over ranks that
// merges neighbours level by level and carries an odd last one up: 3 ranks (0 + 1) + 2, 5 ranks
// ((0 + 1) + (2 + 3)) + 4, 6 ranks ((0 + 1) + (2 + 3)) + (4 + 5). An element's bits depend on its operands
// alone. Denormal results are flushed to zero, as in the kernels. `out` must not overlap an operand.
void TreeSum(std::span<const float* const> operands, int64_t n, float* out);

}  // namespace perigee::comm
