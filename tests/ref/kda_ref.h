#pragma once

#include <cstdint>
#include <vector>

namespace perigee::ref {

struct KdaShape {
  int64_t heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
};

// Kimi Delta Attention of one sequence, one token after another in double, in the paper's closed form
//   S_t = (I - beta_t k_t k_t^T) Diag(exp(g_t)) S_{t-1} + beta_t k_t v_t^T,   o_t = S_t^T q_t
// with q and k normalised by sqrt(sum of squares + 1e-6) and q scaled by key_dim^-0.5.
// q, k, g [tokens, heads * key_dim], v [tokens, heads * value_dim], beta [tokens, heads]; state [heads,
// key_dim, value_dim] is the initial state and becomes the final one. Returns [tokens, heads * value_dim].
std::vector<double> Kda(const KdaShape& shape, const std::vector<double>& q, const std::vector<double>& k,
                        const std::vector<double>& v, const std::vector<double>& g,
                        const std::vector<double>& beta, std::vector<double>& state);

// What such a sequence does to any initial state: S_out = M S_in + B, as the product of its tokens' matrices.
struct KdaSummary {
  std::vector<double> transition;  // M [heads, key_dim, key_dim]
  std::vector<double> state;       // B [heads, key_dim, value_dim]
};
KdaSummary SummariseKda(const KdaShape& shape, const std::vector<double>& k, const std::vector<double>& v,
                        const std::vector<double>& g, const std::vector<double>& beta);

// g = -exp(a_log[head]) * ln(1 + exp(z + dt_bias)). z [tokens, channels], dt_bias [channels], a_log [heads].
std::vector<double> KdaGate(const std::vector<double>& z, const std::vector<double>& dt_bias,
                            const std::vector<double>& a_log);

double Sigmoid(double x);
double Silu(double x);

}  // namespace perigee::ref
