#include "ref/moe_ref.h"

#include <algorithm>
#include <set>

#include "ref/kda_ref.h"

namespace perigee::ref {
namespace {

std::vector<double> Product(const std::vector<double>& w, const std::vector<double>& x) {
  std::vector<double> y(w.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  return y;
}

}  // namespace

Choice Route(const std::vector<double>& logits, const std::vector<double>& bias, int64_t top_k,
             bool renormalize, double factor) {
  std::set<int64_t> chosen;
  while (static_cast<int64_t>(chosen.size()) < top_k) {
    int64_t best = -1;
    for (int64_t e = 0; e < static_cast<int64_t>(logits.size()); ++e) {
      if (chosen.count(e)) continue;
      if (best < 0 || Sigmoid(logits[e]) + bias[e] > Sigmoid(logits[best]) + bias[best]) best = e;
    }
    chosen.insert(best);
  }
  Choice c;
  double sum = 0;
  for (int64_t e : chosen) {
    c.experts.push_back(e);
    c.weights.push_back(Sigmoid(logits[e]));
    sum += c.weights.back();
  }
  for (double& w : c.weights) w = (renormalize ? w / (sum + 1e-20) : w) * factor;
  return c;
}

std::vector<double> GatedMlp(const Mlp& mlp, const std::vector<double>& x) {
  std::vector<double> a = Product(mlp.gate, x);
  const std::vector<double> up = Product(mlp.up, x);
  for (size_t i = 0; i < a.size(); ++i) a[i] = Silu(a[i]) * up[i];
  return Product(mlp.down, a);
}

std::vector<double> Moe(const std::vector<Mlp>& experts, const Mlp& shared, const Choice& choice,
                        const std::vector<double>& x) {
  std::vector<double> y(x.size());
  for (size_t c = 0; c < choice.experts.size(); ++c) {
    const std::vector<double> part = GatedMlp(experts[choice.experts[c]], x);
    for (size_t i = 0; i < y.size(); ++i) y[i] += choice.weights[c] * part[i];
  }
  if (shared.down.empty()) return y;
  const std::vector<double> part = GatedMlp(shared, x);
  for (size_t i = 0; i < y.size(); ++i) y[i] += part[i];
  return y;
}

}  // namespace perigee::ref
