#pragma once

#include "testing/compare.h"

namespace perigee::test {

// What fp32 kernels may differ by from the double references, one row a kernel family. Each bound is about
// four times the largest difference seen over the tests' cases, and far below what a wrong formula gives
// (an epsilon moved, a decay applied twice: above 1e-3).

// Products: rounding of a chain of n <= 300 multiply-adds grows with sqrt(n) eps.
inline constexpr Tolerance kGemmTolerance{.of_max = 4e-6, .relative_rmse = 2e-6};
// The state sums over hundreds of rows, and a chunk's triangular solve amplifies by the size of its inverse.
inline constexpr Tolerance kKdaTolerance{.of_max = 4e-6, .relative_rmse = 2e-6};
// Weights of a softmax over scores of unit size.
inline constexpr Tolerance kMlaTolerance{.of_max = 5e-6, .relative_rmse = 4e-6};
// A score of 60 carries an absolute error of 60 eps * sqrt(width), which is relative in its exponential.
inline constexpr Tolerance kMlaWideTolerance{.of_max = 4e-5, .relative_rmse = 1.4e-5};
// Two products and an activation deep, 9 terms wide.
inline constexpr Tolerance kMoeTolerance{.of_max = 2e-6, .relative_rmse = 1e-6};
// One exponential and one logarithm a value.
inline constexpr Tolerance kGateTolerance{.absolute = 1e-9, .relative = 2e-6};
inline constexpr Tolerance kSigmoidTolerance{.absolute = 1e-30, .relative = 1e-6};

}  // namespace perigee::test
