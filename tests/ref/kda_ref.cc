#include "ref/kda_ref.h"

#include <cmath>

namespace perigee::ref {
namespace {

std::vector<double> Normalised(const double* x, int64_t n, double scale) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  std::vector<double> y(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] / std::sqrt(sum + 1e-6) * scale;
  return y;
}

// One token of one head; state [key_dim][value_dim].
void Step(int64_t key_dim, int64_t value_dim, const std::vector<double>& q, const std::vector<double>& k,
          const double* v, const double* g, double beta, double* state, double* out) {
  for (int64_t i = 0; i < key_dim; ++i) {
    const double decay = std::exp(g[i]);
    for (int64_t j = 0; j < value_dim; ++j) state[i * value_dim + j] *= decay;
  }
  std::vector<double> read(static_cast<size_t>(value_dim));  // k^T S, so that k k^T S = k read
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int64_t j = 0; j < value_dim; ++j) read[j] += k[i] * state[i * value_dim + j];
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int64_t j = 0; j < value_dim; ++j) {
      state[i * value_dim + j] += beta * k[i] * v[j] - beta * k[i] * read[j];
    }
  }
  for (int64_t j = 0; j < value_dim; ++j) {
    out[j] = 0;
    for (int64_t i = 0; i < key_dim; ++i) out[j] += state[i * value_dim + j] * q[i];
  }
}

// x = a x, a [n][n], x [n][cols].
void Multiply(const std::vector<double>& a, int64_t n, int64_t cols, double* x) {
  std::vector<double> y(static_cast<size_t>(n * cols));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < cols; ++c) y[i * cols + c] += a[i * n + j] * x[j * cols + c];
    }
  }
  for (size_t i = 0; i < y.size(); ++i) x[i] = y[i];
}

}  // namespace

KdaSummary SummariseKda(const KdaShape& shape, const std::vector<double>& k, const std::vector<double>& v,
                        const std::vector<double>& g, const std::vector<double>& beta) {
  const int64_t dk = shape.key_dim, dv = shape.value_dim;
  const int64_t tokens = static_cast<int64_t>(beta.size()) / shape.heads;
  KdaSummary summary;
  summary.transition.resize(static_cast<size_t>(shape.heads * dk * dk));
  summary.state.resize(static_cast<size_t>(shape.heads * dk * dv));
  for (int64_t h = 0; h < shape.heads; ++h) {
    double* m = &summary.transition[h * dk * dk];
    double* b = &summary.state[h * dk * dv];
    for (int64_t i = 0; i < dk; ++i) m[i * dk + i] = 1;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t row = t * shape.heads + h;
      const auto kh = Normalised(&k[row * dk], dk, 1.0);
      // (I - beta k k^T) Diag(exp(g))
      std::vector<double> a(static_cast<size_t>(dk * dk));
      for (int64_t i = 0; i < dk; ++i) {
        for (int64_t j = 0; j < dk; ++j) {
          a[i * dk + j] = ((i == j ? 1 : 0) - beta[row] * kh[i] * kh[j]) * std::exp(g[row * dk + j]);
        }
      }
      Multiply(a, dk, dk, m);
      Multiply(a, dk, dv, b);
      for (int64_t i = 0; i < dk; ++i) {
        for (int64_t j = 0; j < dv; ++j) b[i * dv + j] += beta[row] * kh[i] * v[row * dv + j];
      }
    }
  }
  return summary;
}

std::vector<double> Kda(const KdaShape& shape, const std::vector<double>& q, const std::vector<double>& k,
                        const std::vector<double>& v, const std::vector<double>& g,
                        const std::vector<double>& beta, std::vector<double>& state) {
  const int64_t dk = shape.key_dim, dv = shape.value_dim;
  const int64_t tokens = static_cast<int64_t>(beta.size()) / shape.heads;
  std::vector<double> out(v.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t row = t * shape.heads + h;
      const auto qh = Normalised(&q[row * dk], dk, std::pow(static_cast<double>(dk), -0.5));
      const auto kh = Normalised(&k[row * dk], dk, 1.0);
      Step(dk, dv, qh, kh, &v[row * dv], &g[row * dk], beta[row], &state[h * dk * dv], &out[row * dv]);
    }
  }
  return out;
}

std::vector<double> KdaGate(const std::vector<double>& z, const std::vector<double>& dt_bias,
                            const std::vector<double>& a_log) {
  const size_t channels = dt_bias.size(), per_head = channels / a_log.size();
  std::vector<double> g(z.size());
  for (size_t i = 0; i < z.size(); ++i) {
    const size_t c = i % channels;
    const double x = z[i] + dt_bias[c];
    // ln(1 + e^x) without overflow.
    const double softplus = std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
    g[i] = -std::exp(a_log[c / per_head]) * softplus;
  }
  return g;
}

double Sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double Silu(double x) {
  return x * Sigmoid(x);
}

}  // namespace perigee::ref
