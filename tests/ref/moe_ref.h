#pragma once

#include <cstdint>
#include <vector>

namespace perigee::ref {

// One token's choice: experts in ascending index and their weights.
struct Choice {
  std::vector<int64_t> experts;
  std::vector<double> weights;
};

// s = sigmoid(logits); the top_k largest s + bias (ties to the lower index); weights s (without the bias),
// divided by (their sum + 1e-20) if renormalize, times factor.
Choice Route(const std::vector<double>& logits, const std::vector<double>& bias, int64_t top_k,
             bool renormalize, double factor);

// Weights row-major [out, in]: gate and up [width, hidden], down [hidden, width].
struct Mlp {
  std::vector<double> gate, up, down;
};

// down . (silu(gate . x) * (up . x)) for one token x [hidden].
std::vector<double> GatedMlp(const Mlp& mlp, const std::vector<double>& x);

// sum of weight_e * MLP_e(x) over the choice, + shared(x); a shared MLP without weights counts as none.
std::vector<double> Moe(const std::vector<Mlp>& experts, const Mlp& shared, const Choice& choice,
                        const std::vector<double>& x);

}  // namespace perigee::ref
