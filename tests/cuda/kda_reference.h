#pragma once

#include <cstdint>
#include <vector>

// The recurrence of kimi-linear specification 3.4.5 in double, and random inputs for it: what the CUDA
// kernels of KDA are held against. Host memory throughout; bfloat16 values travel as floats that are exactly
// representable.
namespace perigee::tests {

struct KdaInputs {
  int64_t rows = 0;
  int heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  std::vector<float> q, k, v;  // [rows, heads * dim]
  std::vector<float> g;        // [rows, heads * key_dim]
  std::vector<float> beta;     // [rows, heads]
};

enum class Gates {
  kHeavy,    // -exp(3 N - 2): most of the model's, with a tail of thousands
  kSlow,     // decay 0.99 to 0.9999
  kBounded,  // -5 sigmoid(N)
  kExtreme,  // half zero, the rest uniform to -2000
};
enum class Keys { kIndependent, kCorrelated };

float RoundToBf16(float x);
KdaInputs DrawKda(int64_t rows, int heads, int key_dim, int value_dim, Gates gates, Keys keys, uint64_t seed);

// Runs rows [begin, begin + len) of every head from `state` [heads, key_dim, value_dim], which is replaced,
// into out [rows, heads * value_dim]. checkpoint_rows ascending; `checkpoints` gets a copy of the state after
// each.
void KdaRecurrence(const KdaInputs& in, int64_t begin, int64_t len, std::vector<double>& state,
                   std::vector<double>& out, const std::vector<int64_t>& checkpoint_rows = {},
                   std::vector<std::vector<double>>* checkpoints = nullptr);

}  // namespace perigee::tests
