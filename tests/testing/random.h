#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace perigee::test {

// Seeded numbers for tests: the same on every machine and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // [0, n)
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // [low, high)
  double Uniform(double low = 0, double high = 1) {
    return low + (high - low) * (static_cast<double>(Next() >> 11) * 0x1p-53);
  }
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

  std::vector<float> Normals(int64_t n, double scale = 1) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& x : out) x = static_cast<float>(scale * Normal());
    return out;
  }
  std::vector<float> Uniforms(int64_t n, double low, double high) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& x : out) x = static_cast<float>(Uniform(low, high));
    return out;
  }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[static_cast<size_t>(Below(i))]);
  }

 private:
  uint64_t state_;
};

// Log decays of KDA as they come: kModel is -exp(A_log) softplus(z + dt_bias) with exp(A_log) in 1..16 and
// dt_bias of the usual initialisation (heavy tail), kSlow keeps 0.99..0.9999 a step, kFast reaches -2000 in
// one step, kZero keeps everything, kMixed takes another of these for every entry.
enum class GateKind { kModel, kSlow, kFast, kZero, kMixed };

inline float RandomGate(Random& random, GateKind kind) {
  switch (kind) {
    case GateKind::kModel: {
      const double dt = std::exp(random.Uniform(std::log(0.001), std::log(0.1)));
      const double x = random.Normal() * 2 + dt + std::log(-std::expm1(-dt));
      return static_cast<float>(-random.Uniform(1, 16) * std::log1p(std::exp(x)));
    }
    case GateKind::kSlow:
      return static_cast<float>(std::log(random.Uniform(0.99, 0.9999)));
    case GateKind::kFast:
      return static_cast<float>(-std::exp(random.Uniform(0, std::log(2000))));
    case GateKind::kZero:
      return 0;
    case GateKind::kMixed:
      return RandomGate(random, static_cast<GateKind>(random.Below(4)));
  }
  return 0;
}

inline std::vector<float> RandomGates(Random& random, int64_t n, GateKind kind) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& g : out) g = RandomGate(random, kind);
  return out;
}

inline std::vector<double> ToDouble(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

}  // namespace perigee::test
