#include "ref/norm_ref.h"

#include <cmath>
#include <cstddef>

#include "ref/kda_ref.h"

namespace perigee::ref {

std::vector<double> RmsNorm(const std::vector<double>& x, const std::vector<double>& weight, double eps) {
  const size_t n = weight.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x[row + i] * x[row + i];
    const double root = std::sqrt(sum / static_cast<double>(n) + eps);
    for (size_t i = 0; i < n; ++i) y[row + i] = x[row + i] / root * weight[i];
  }
  return y;
}

std::vector<double> GatedRmsNorm(const std::vector<double>& x, const std::vector<double>& gate,
                                 const std::vector<double>& weight, double eps) {
  std::vector<double> y = RmsNorm(x, weight, eps);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= Sigmoid(gate[i]);
  return y;
}

}  // namespace perigee::ref
