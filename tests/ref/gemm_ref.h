#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perigee::ref {

// y[r, o] = sum_i x[r, i] * w[o, i] in double. x [rows, in], w [out, in].
std::vector<double> Product(int64_t in, const std::vector<double>& x, const std::vector<double>& w);

// The float arithmetic that the GEMM contract fixes, to the bit: per part a chain of multiply-adds from zero
// over ascending inputs, the parts added as a binary tree of neighbours. bounds [0, ..., in], a power of two
// of parts; {0, in} is one chain. `fused`: a multiply-add rounds once, as it does wherever the hardware has
// it.
std::vector<float> ProductChains(int64_t in, std::span<const float> x, std::span<const float> w,
                                 std::span<const int64_t> bounds, bool fused = true);

}  // namespace perigee::ref
