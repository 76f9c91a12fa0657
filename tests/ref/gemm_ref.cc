#include "ref/gemm_ref.h"

#include <cmath>

namespace perigee::ref {
namespace {

float Chain(const float* x, const float* w, int64_t begin, int64_t end, bool fused) {
  float sum = 0;
  for (int64_t i = begin; i < end; ++i) sum = fused ? std::fma(x[i], w[i], sum) : x[i] * w[i] + sum;
  return sum;
}

float Tree(std::vector<float> parts) {
  while (parts.size() > 1) {
    for (size_t i = 0; i < parts.size() / 2; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
    parts.resize(parts.size() / 2);
  }
  return parts[0];
}

}  // namespace

std::vector<double> Product(int64_t in, const std::vector<double>& x, const std::vector<double>& w) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in, out = static_cast<int64_t>(w.size()) / in;
  std::vector<double> y(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[o * in + i];
    }
  }
  return y;
}

std::vector<float> ProductChains(int64_t in, std::span<const float> x, std::span<const float> w,
                                 std::span<const int64_t> bounds, bool fused) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in, out = static_cast<int64_t>(w.size()) / in;
  std::vector<float> y;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      std::vector<float> parts;
      for (size_t p = 0; p + 1 < bounds.size(); ++p) {
        parts.push_back(Chain(&x[r * in], &w[o * in], bounds[p], bounds[p + 1], fused));
      }
      y.push_back(Tree(std::move(parts)));
    }
  }
  return y;
}

}  // namespace perigee::ref
