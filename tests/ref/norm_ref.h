#pragma once

#include <vector>

namespace perigee::ref {

// x / sqrt(mean of x^2 + eps) * weight over groups of weight.size() entries.
std::vector<double> RmsNorm(const std::vector<double>& x, const std::vector<double>& weight, double eps);

// RmsNorm times sigmoid(gate): KDA's output norm, one group a head.
std::vector<double> GatedRmsNorm(const std::vector<double>& x, const std::vector<double>& gate,
                                 const std::vector<double>& weight, double eps);

}  // namespace perigee::ref
