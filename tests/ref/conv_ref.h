#pragma once

#include <cstdint>
#include <vector>

namespace perigee::ref {

// Causal depthwise convolution and SiLU of one sequence: y[t, c] = silu(sum_m taps[m, c] * x[t - (width - 1)
// + m, c]). x [tokens, channels], taps [width, channels] (the last one meets the current token); tail [width
// - 1, channels] holds the inputs before the first token, oldest first, and becomes the last ones.
std::vector<double> CausalConv(int64_t channels, const std::vector<double>& x,
                               const std::vector<double>& taps, std::vector<double>& tail);

}  // namespace perigee::ref
