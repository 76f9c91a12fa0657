#include "ref/mla_ref.h"

#include <algorithm>
#include <cmath>

namespace perigee::ref {
namespace {

struct Expanded {
  std::vector<double> key;    // [keys, nope + rope]
  std::vector<double> value;  // [keys, value]
};

Expanded Expand(const MlaShape& s, int64_t head, int64_t keys, const std::vector<double>& latent,
                const std::vector<double>& shared_key, const std::vector<double>& kv_b) {
  Expanded e;
  for (int64_t t = 0; t < keys; ++t) {
    for (int64_t j = 0; j < s.nope + s.value; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < s.rank; ++r) {
        sum += kv_b[(head * (s.nope + s.value) + j) * s.rank + r] * latent[t * s.rank + r];
      }
      (j < s.nope ? e.key : e.value).push_back(sum);
    }
    for (int64_t j = 0; j < s.rope; ++j) e.key.push_back(shared_key[t * s.rope + j]);
  }
  return e;
}

// softmax(q . keys * scale) . values over the first `visible` keys.
void Attend(const MlaShape& s, const double* q, const Expanded& e, int64_t visible, double* out) {
  const int64_t width = s.nope + s.rope;
  std::vector<double> p(static_cast<size_t>(visible));
  for (int64_t t = 0; t < visible; ++t) {
    double dot = 0;
    for (int64_t j = 0; j < width; ++j) dot += q[j] * e.key[t * width + j];
    p[t] = dot / std::sqrt(static_cast<double>(width));
  }
  const double highest = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (double& x : p) total += x = std::exp(x - highest);
  for (int64_t j = 0; j < s.value; ++j) {
    out[j] = 0;
    for (int64_t t = 0; t < visible; ++t) out[j] += p[t] / total * e.value[t * s.value + j];
  }
}

}  // namespace

std::vector<double> Mla(const MlaShape& s, const std::vector<double>& q, const std::vector<double>& latent,
                        const std::vector<double>& shared_key, const std::vector<double>& kv_b) {
  const int64_t width = s.nope + s.rope;
  const int64_t queries = static_cast<int64_t>(q.size()) / (s.heads * width);
  const int64_t keys = static_cast<int64_t>(latent.size()) / s.rank;
  std::vector<double> out(static_cast<size_t>(queries * s.heads * s.value));
  for (int64_t h = 0; h < s.heads; ++h) {
    const Expanded e = Expand(s, h, keys, latent, shared_key, kv_b);
    for (int64_t i = 0; i < queries; ++i) {
      Attend(s, &q[(i * s.heads + h) * width], e, keys - queries + i + 1, &out[(i * s.heads + h) * s.value]);
    }
  }
  return out;
}

}  // namespace perigee::ref
