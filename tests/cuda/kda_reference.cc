#include "kda_reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

namespace perigee::tests {
namespace {

constexpr int kColumns = 32;  // value channels of a task

void ForAll(int64_t tasks, const auto& body) {
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t i = next++; i < tasks; i = next++) body(i);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

struct Generator {
  explicit Generator(uint64_t seed) : bits(seed) {}
  float Normal() { return normal(bits); }
  float Uniform() { return uniform(bits); }
  std::mt19937_64 bits;
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
};

float DrawGate(Gates gates, Generator& r) {
  switch (gates) {
    case Gates::kHeavy:
      return -std::exp(3.0f * r.Normal() - 2.0f);
    case Gates::kSlow:
      return std::log1p(-std::pow(10.0f, -4.0f + 2.0f * r.Uniform()));
    case Gates::kBounded:
      return -5.0f / (1.0f + std::exp(-r.Normal()));
    case Gates::kExtreme:
      return r.Uniform() < 0.5f ? 0.0f : -2000.0f * r.Uniform();
  }
  return 0.0f;
}

}  // namespace

float RoundToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

KdaInputs DrawKda(int64_t rows, int heads, int key_dim, int value_dim, Gates gates, Keys keys,
                  uint64_t seed) {
  KdaInputs in{rows, heads, key_dim, value_dim, {}, {}, {}, {}, {}};
  in.q.resize(rows * heads * key_dim);
  in.k.resize(in.q.size());
  in.g.resize(in.q.size());
  in.v.resize(rows * heads * value_dim);
  in.beta.resize(rows * heads);
  std::vector<float> common(heads * key_dim);
  Generator first(seed);
  for (float& x : common) x = first.Normal();
  ForAll((rows + 1023) / 1024, [&](int64_t piece) {
    Generator r(seed * 1000003 + static_cast<uint64_t>(piece) + 1);
    for (int64_t row = piece * 1024; row < std::min(rows, (piece + 1) * 1024); ++row) {
      for (int c = 0; c < heads * key_dim; ++c) {
        const int64_t at = row * heads * key_dim + c;
        in.q[at] = RoundToBf16(r.Normal());
        in.k[at] = RoundToBf16(keys == Keys::kCorrelated ? common[c] + 0.3f * r.Normal() : r.Normal());
        in.g[at] = DrawGate(gates, r);
      }
      for (int c = 0; c < heads * value_dim; ++c) in.v[row * heads * value_dim + c] = RoundToBf16(r.Normal());
      for (int h = 0; h < heads; ++h) in.beta[row * heads + h] = 1.0f / (1.0f + std::exp(-r.Normal()));
    }
  });
  return in;
}

void KdaRecurrence(const KdaInputs& in, int64_t begin, int64_t len, std::vector<double>& state,
                   std::vector<double>& out, const std::vector<int64_t>& checkpoint_rows,
                   std::vector<std::vector<double>>* checkpoints) {
  const int tiles = (in.value_dim + kColumns - 1) / kColumns;
  if (checkpoints != nullptr) checkpoints->assign(checkpoint_rows.size(), std::vector<double>(state.size()));
  ForAll(static_cast<int64_t>(in.heads) * tiles, [&](int64_t task) {
    const int head = static_cast<int>(task / tiles);
    const int column = static_cast<int>(task % tiles) * kColumns;
    const int columns = std::min(kColumns, in.value_dim - column);
    std::vector<double> s(static_cast<size_t>(in.key_dim) * kColumns), q(in.key_dim), k(in.key_dim),
        e(in.key_dim);
    const auto at = [&](int i) {
      return (static_cast<size_t>(head) * in.key_dim + i) * in.value_dim + column;
    };
    for (int i = 0; i < in.key_dim; ++i) std::copy_n(&state[at(i)], columns, &s[i * kColumns]);
    size_t checkpoint = 0;
    for (int64_t row = begin; row < begin + len; ++row) {
      const int64_t from = (row * in.heads + head) * in.key_dim;
      double qq = 1e-6, kk = 1e-6;
      for (int i = 0; i < in.key_dim; ++i) {
        q[i] = in.q[from + i];
        k[i] = in.k[from + i];
        e[i] = std::exp(static_cast<double>(in.g[from + i]));
        qq += q[i] * q[i];
        kk += k[i] * k[i];
      }
      const double q_scale = 1.0 / std::sqrt(qq * in.key_dim), k_scale = 1.0 / std::sqrt(kk);
      double n[kColumns] = {}, o[kColumns] = {};
      for (int i = 0; i < in.key_dim; ++i) {
        k[i] *= k_scale;
        double* row_s = &s[i * kColumns];
        for (int j = 0; j < kColumns; ++j) {
          row_s[j] *= e[i];
          n[j] += k[i] * row_s[j];
        }
      }
      for (int j = 0; j < columns; ++j) {
        n[j] = in.beta[row * in.heads + head] *
               (in.v[(row * in.heads + head) * in.value_dim + column + j] - n[j]);
      }
      for (int i = 0; i < in.key_dim; ++i) {
        double* row_s = &s[i * kColumns];
        for (int j = 0; j < kColumns; ++j) {
          row_s[j] += k[i] * n[j];
          o[j] += q[i] * row_s[j];
        }
      }
      for (int j = 0; j < columns; ++j)
        out[(row * in.heads + head) * in.value_dim + column + j] = q_scale * o[j];
      if (checkpoint < checkpoint_rows.size() && checkpoint_rows[checkpoint] == row + 1 - begin) {
        for (int i = 0; i < in.key_dim; ++i)
          std::copy_n(&s[i * kColumns], columns, &(*checkpoints)[checkpoint][at(i)]);
        ++checkpoint;
      }
    }
    for (int i = 0; i < in.key_dim; ++i) std::copy_n(&s[i * kColumns], columns, &state[at(i)]);
  });
}

}  // namespace perigee::tests
