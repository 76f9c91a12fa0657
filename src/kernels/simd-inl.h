// Shared vector code of the CPU kernels. Included once per Highway target, after hwy/highway.h, by .cc files
// that include hwy/foreach_target.h; hence the toggling guard in place of #pragma once.
#if defined(PERIGEE_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PERIGEE_KERNELS_SIMD_INL_H_
#undef PERIGEE_KERNELS_SIMD_INL_H_
#else
#define PERIGEE_KERNELS_SIMD_INL_H_
#endif

#include <cstddef>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes on every target, so that 16 virtual lanes are 1, 2 or 4 vectors.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
inline constexpr size_t kVecLanes = hn::MaxLanes(D());
inline constexpr size_t kVecsPer16 = 16 / kVecLanes;
static_assert(kVecLanes * kVecsPer16 == 16);

// The first min(n, lanes) elements at p, the other lanes zero. Reads nothing beyond them.
HWY_INLINE V LoadUpTo(const float* HWY_RESTRICT p, size_t n) {
  const D d;
  if (HWY_LIKELY(n >= kVecLanes)) return hn::LoadU(d, p);
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float lanes[kVecLanes] = {};
  for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#endif
}

// Stores the first min(n, lanes) lanes and touches nothing beyond them.
HWY_INLINE void StoreUpTo(V v, float* HWY_RESTRICT p, size_t n) {
  const D d;
  if (HWY_LIKELY(n >= kVecLanes)) {
    hn::StoreU(v, d, p);
    return;
  }
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float lanes[kVecLanes];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < n; ++i) p[i] = lanes[i];
#else
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#endif
}

// e^x: exactly 1 at 0, exactly 0 from -104 down (also at -inf), inf above 88.8; NaN stays NaN.
HWY_INLINE V Exp(V x) {
  const D d;
  const V y = hn::Exp(d, hn::Min(x, hn::Set(d, 104.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// 1 / (1 + e^-x), without overflow and with full relative accuracy on both sides.
HWY_INLINE V Sigmoid(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const V e = Exp(hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

// x * sigmoid(x).
HWY_INLINE V Silu(V x) {
  return hn::Mul(x, Sigmoid(x));
}

// ln(1 + e^x), x itself above 20.
HWY_INLINE V Softplus(V x) {
  const D d;
  const V bent = hn::Log1p(d, Exp(hn::Min(x, hn::Set(d, 20.0f))));
  const V y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 20.0f)), x, bent);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// 16 virtual lanes. A reduction over a row puts element i into lane i mod 16 on every target and folds the
// lanes in one fixed tree, so that its bits depend neither on the vector width nor on who computes it.
struct Lanes16 {
  V v[kVecsPer16];
};

HWY_INLINE Lanes16 Set16(float value) {
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) out.v[k] = hn::Set(D(), value);
  return out;
}

HWY_INLINE Lanes16 Load16(const float* HWY_RESTRICT p) {
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) out.v[k] = hn::LoadU(D(), p + k * kVecLanes);
  return out;
}

// The first min(n, 16) elements at p, the other lanes zero.
HWY_INLINE Lanes16 LoadUpTo16(const float* HWY_RESTRICT p, size_t n) {
  if (HWY_LIKELY(n >= 16)) return Load16(p);
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) {
    const size_t begin = k * kVecLanes;
    out.v[k] = begin < n ? LoadUpTo(p + begin, n - begin) : hn::Zero(D());
  }
  return out;
}

// The first min(n, 16) lanes of x, the others `rest`.
HWY_INLINE Lanes16 FirstLanes16(const Lanes16& x, size_t n, const Lanes16& rest) {
  if (HWY_LIKELY(n >= 16)) return x;
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) {
    const size_t begin = HWY_MIN(n, k * kVecLanes);
    const auto inside = hn::FirstN(D(), HWY_MIN(n - begin, kVecLanes));
    out.v[k] = hn::IfThenElse(inside, x.v[k], rest.v[k]);
  }
  return out;
}

HWY_INLINE void Store16(const Lanes16& x, float* HWY_RESTRICT p) {
  for (size_t k = 0; k < kVecsPer16; ++k) hn::StoreU(x.v[k], D(), p + k * kVecLanes);
}

// Stores the first min(n, 16) lanes.
HWY_INLINE void StoreUpTo16(const Lanes16& x, float* HWY_RESTRICT p, size_t n) {
  for (size_t k = 0; k < kVecsPer16; ++k) {
    const size_t begin = k * kVecLanes;
    if (begin < n) StoreUpTo(x.v[k], p + begin, n - begin);
  }
}

HWY_INLINE Lanes16 Add16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) out.v[k] = hn::Add(a.v[k], b.v[k]);
  return out;
}

// a * b + c.
HWY_INLINE Lanes16 MulAdd16(const Lanes16& a, const Lanes16& b, const Lanes16& c) {
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) out.v[k] = hn::MulAdd(a.v[k], b.v[k], c.v[k]);
  return out;
}

// The larger of the two per lane; a NaN in `b` keeps `a`.
HWY_INLINE Lanes16 Max16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t k = 0; k < kVecsPer16; ++k) {
    out.v[k] = hn::IfThenElse(hn::Gt(b.v[k], a.v[k]), b.v[k], a.v[k]);
  }
  return out;
}

// Sum of the 16 lanes: lane l with l + 8, then + 4, + 2, + 1.
HWY_INLINE float ReduceSum16(const Lanes16& x) {
  HWY_ALIGN float lanes[16];
  for (size_t k = 0; k < kVecsPer16; ++k) hn::Store(x.v[k], D(), lanes + k * kVecLanes);
  for (size_t half = 8; half != 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

HWY_INLINE float ReduceMax16(const Lanes16& x) {
  HWY_ALIGN float lanes[16];
  for (size_t k = 0; k < kVecsPer16; ++k) hn::Store(x.v[k], D(), lanes + k * kVecLanes);
  float max = lanes[0];
  for (size_t l = 1; l < 16; ++l) max = lanes[l] > max ? lanes[l] : max;
  return max;
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PERIGEE_KERNELS_SIMD_INL_H_
