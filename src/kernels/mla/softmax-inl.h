// One block of keys of a running softmax. Included once per Highway target.
#if defined(PERIGEE_KERNELS_MLA_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PERIGEE_KERNELS_MLA_SOFTMAX_INL_H_
#undef PERIGEE_KERNELS_MLA_SOFTMAX_INL_H_
#else
#define PERIGEE_KERNELS_MLA_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/mla/mla_cpu.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

// Running maximum and sum of exponentials of one query row and head.
struct RunningMax {
  float* max;
  float* sum;
};

HWY_INLINE float ExpOf(float x) {
  return hn::GetLane(Exp(hn::Set(D(), x)));
}

// scores[0, 64) become exp(scores * scale - new maximum), zero from `visible` on; returns the factor by which
// what was accumulated before must be multiplied. visible >= 1. Sums follow a fixed lane structure from the
// block's first key.
HWY_INLINE float SoftmaxBlock(float* HWY_RESTRICT scores, int64_t visible, float scale, RunningMax running) {
  const D d;
  constexpr int64_t kStep = kVecLanes;
  const auto lowest = hn::Set(d, -__builtin_inff());
  auto max = lowest;
  for (int64_t j = 0; j < cpu::kMlaKeyBlock; j += kStep) {
    const auto keep = hn::Lt(hn::Iota(d, static_cast<float>(j)), hn::Set(d, static_cast<float>(visible)));
    const auto s = hn::IfThenElse(keep, hn::Mul(hn::LoadU(d, scores + j), hn::Set(d, scale)), lowest);
    hn::StoreU(s, d, scores + j);
    max = hn::Max(max, s);
  }
  const float old_max = *running.max;
  const float new_max = std::max(old_max, hn::GetLane(hn::MaxOfLanes(d, max)));
  Lanes16 sums = Set16(0.0f);
  for (int64_t j = 0; j < cpu::kMlaKeyBlock; j += 16) {
    for (int64_t i = j; i < j + 16; i += kStep) {
      hn::StoreU(Exp(hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, new_max))), d, scores + i);
    }
    sums = Add16(sums, Load16(scores + j));
  }
  const float factor = ExpOf(old_max - new_max);
  *running.sum = *running.sum * factor + ReduceSum16(sums);
  *running.max = new_max;
  return factor;
}

// row[0, n) *= factor.
HWY_INLINE void ScaleRow(float* HWY_RESTRICT row, int64_t n, float factor) {
  if (factor == 1.0f) return;
  const auto f = hn::Set(D(), factor);
  for (int64_t j = 0; j < n; j += kVecLanes) {
    const auto left = static_cast<size_t>(n - j);
    StoreUpTo(hn::Mul(LoadUpTo(row + j, left), f), row + j, left);
  }
}

// target[0, n) += factor * source.
HWY_INLINE void AddScaledRow(const float* HWY_RESTRICT source, float factor, int64_t n,
                             float* HWY_RESTRICT target) {
  const auto f = hn::Set(D(), factor);
  for (int64_t j = 0; j < n; j += kVecLanes) {
    const auto left = static_cast<size_t>(n - j);
    StoreUpTo(hn::MulAdd(LoadUpTo(source + j, left), f, LoadUpTo(target + j, left)), target + j, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
