#include "comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"

namespace perigee::comm {
namespace {

// Merging neighbours level by level is the same tree as cutting at the largest power of two below the count.
template <size_t kCount>
float SumAt(const float* const* operands, int64_t i) {
  if constexpr (kCount == 1) {
    return operands[0][i];
  } else {
    constexpr size_t kLeft = std::bit_floor(kCount - 1);
    return SumAt<kLeft>(operands, i) + SumAt<kCount - kLeft>(operands + kLeft, i);
  }
}

template <size_t kCount>
void SumLoop(const float* const* operands, int64_t n, float* __restrict out) {
  std::array<const float*, kCount> local;  // the loop then has no loads of pointers
  std::copy_n(operands, kCount, local.begin());
  for (int64_t i = 0; i < n; ++i) out[i] = SumAt<kCount>(local.data(), i);
}

constexpr size_t kMaxDirect = 8;
constexpr std::array<void (*)(const float* const*, int64_t, float*), kMaxDirect> kLoops = {
    SumLoop<1>, SumLoop<2>, SumLoop<3>, SumLoop<4>, SumLoop<5>, SumLoop<6>, SumLoop<7>, SumLoop<8>};

void SumRange(std::span<const float* const> operands, int64_t n, float* out) {
  if (operands.size() <= kMaxDirect) {
    kLoops[operands.size() - 1](operands.data(), n, out);
    return;
  }
  const size_t left = std::bit_floor(operands.size() - 1);
  std::vector<float> right_sum(static_cast<size_t>(n));
  SumRange(operands.subspan(left), n, right_sum.data());
  SumRange(operands.first(left), n, out);
  for (int64_t i = 0; i < n; ++i) out[i] += right_sum[static_cast<size_t>(i)];
}

}  // namespace

void TreeSum(std::span<const float* const> operands, int64_t n, float* out) {
  PERIGEE_CHECK(!operands.empty() && n >= 0);
  const ScopedFlushDenormals flush;
  SumRange(operands, n, out);
}

}  // namespace perigee::comm
