#include "ref/conv_ref.h"

#include "ref/kda_ref.h"

namespace perigee::ref {

std::vector<double> CausalConv(int64_t channels, const std::vector<double>& x,
                               const std::vector<double>& taps, std::vector<double>& tail) {
  std::vector<double> all = tail;
  all.insert(all.end(), x.begin(), x.end());
  const int64_t width = static_cast<int64_t>(taps.size()) / channels;
  std::vector<double> y(x.size());
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    double u = 0;
    for (int64_t m = 0; m < width; ++m) u += taps[m * channels + i % channels] * all[i + m * channels];
    y[i] = Silu(u);
  }
  tail.assign(all.end() - static_cast<int64_t>(tail.size()), all.end());
  return y;
}

}  // namespace perigee::ref
