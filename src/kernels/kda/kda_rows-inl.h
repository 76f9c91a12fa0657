// What the prefill and the decode form do to single rows. Included once per Highway target.
#if defined(PERIGEE_KERNELS_KDA_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PERIGEE_KERNELS_KDA_ROWS_INL_H_
#undef PERIGEE_KERNELS_KDA_ROWS_INL_H_
#else
#define PERIGEE_KERNELS_KDA_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

inline constexpr int64_t kStep = static_cast<int64_t>(kVecLanes);

// to[0, n) = from[0, n), zero up to the next multiple of 16.
HWY_INLINE void CopyPadded(const float* HWY_RESTRICT from, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; i += 16) {
    Store16(LoadUpTo16(from + i, static_cast<size_t>(std::min<int64_t>(n - i, 16))), to + i);
  }
}

// Sum of a[i] * b[i] over padded rows, in the fixed lane structure.
HWY_INLINE float SumOfProducts(const float* a, const float* b, int64_t n) {
  Lanes16 sum = Set16(0.0f);
  for (int64_t i = 0; i < n; i += 16) sum = MulAdd16(Load16(a + i), Load16(b + i), sum);
  return ReduceSum16(sum);
}

// to = from / sqrt(sum of squares + 1e-6) * scale (specification 3.4.3), padded with zeros to a multiple
// of 16.
HWY_INLINE void NormaliseHead(const float* HWY_RESTRICT from, int64_t n, float scale,
                              float* HWY_RESTRICT to) {
  const D d;
  CopyPadded(from, n, to);
  const float sum = SumOfProducts(to, to, n);
  const auto factor = hn::Set(d, scale / std::sqrt(sum + 1e-6f));
  for (int64_t i = 0; i < n; i += kStep) hn::StoreU(hn::Mul(hn::LoadU(d, to + i), factor), d, to + i);
}

// to = exp(from), ones as padding (no decay).
HWY_INLINE void ExpHead(const float* HWY_RESTRICT from, int64_t n, float* HWY_RESTRICT to) {
  const D d;
  CopyPadded(from, n, to);
  for (int64_t i = 0; i < n; i += kStep) hn::StoreU(Exp(hn::LoadU(d, to + i)), d, to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
