#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_decode_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/kda/kda_cpu.h"
#include "kernels/kda/kda_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

struct StepRow {
  const float* key;
  const float* query;
  const float* decay;
  float key_dot_query;
  float beta;
};

// Value channels [j, j + count) of one step (specification 3.4.5, the form with one read and one write of the
// state):
//   p = sum k_i e_i s_i, r = sum q_i e_i s_i;  n = beta (v - p);  out = r + (k . q) n;  s_i = e_i s_i + k_i n
// kV vectors at a time; kTail: the last one is partly outside.
template <int kV, bool kTail>
HWY_INLINE void StepChannels(const StepRow& x, int64_t key_dim, int64_t value_dim, int64_t count,
                             const float* value, float* state, float* out) {
  const D d;
  const auto load = [&](const float* p) {
    return kTail ? LoadUpTo(p, static_cast<size_t>(count)) : hn::LoadU(d, p);
  };
  const auto store = [&](hn::Vec<D> v, float* p) {
    if constexpr (kTail) {
      StoreUpTo(v, p, static_cast<size_t>(count));
    } else {
      hn::StoreU(v, d, p);
    }
  };
  hn::Vec<D> predicted[kV], read[kV], correction[kV];
#pragma GCC unroll 16
  for (int v = 0; v < kV; ++v) predicted[v] = read[v] = hn::Zero(d);
  for (int64_t i = 0; i < key_dim; ++i) {
    const auto e = hn::Set(d, x.decay[i]);
    const auto k = hn::Set(d, x.key[i]);
    const auto q = hn::Set(d, x.query[i]);
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) {
      const auto s = hn::Mul(load(state + i * value_dim + v * kStep), e);
      predicted[v] = hn::MulAdd(k, s, predicted[v]);
      read[v] = hn::MulAdd(q, s, read[v]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kV; ++v) {
    correction[v] = hn::Mul(hn::Set(d, x.beta), hn::Sub(load(value + v * kStep), predicted[v]));
    store(hn::MulAdd(hn::Set(d, x.key_dot_query), correction[v], read[v]), out + v * kStep);
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    const auto e = hn::Set(d, x.decay[i]);
    const auto k = hn::Set(d, x.key[i]);
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) {
      float* s = state + i * value_dim + v * kStep;
      store(hn::MulAdd(k, correction[v], hn::Mul(load(s), e)), s);
    }
  }
}

void DecodeHead(const cpu::KdaArgs& a, const cpu::KdaSegment& segment, int64_t head, float* scratch) {
  const int64_t pad = AlignUp<int64_t>(a.key_dim, 16);
  float* key = scratch;
  float* query = scratch + pad;
  float* decay = scratch + 2 * pad;
  float* state = segment.state + head * a.key_dim * a.value_dim;
  constexpr int64_t kWide = 4;
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.key_dim));
  for (int64_t row = segment.q_begin; row < segment.q_begin + segment.q_len; ++row) {
    NormaliseHead(a.k.Row(row) + head * a.key_dim, a.key_dim, 1.0f, key);
    NormaliseHead(a.q.Row(row) + head * a.key_dim, a.key_dim, scale, query);
    ExpHead(a.g.Row(row) + head * a.key_dim, a.key_dim, decay);
    const StepRow x{key, query, decay, SumOfProducts(key, query, a.key_dim), a.beta.Row(row)[head]};
    const float* value = a.v.Row(row) + head * a.value_dim;
    float* out = a.out.Row(row) + head * a.value_dim;
    int64_t j = 0;
    for (; j + kWide * kStep <= a.value_dim; j += kWide * kStep) {
      StepChannels<kWide, false>(x, a.key_dim, a.value_dim, 0, value + j, state + j, out + j);
    }
    for (; j + kStep <= a.value_dim; j += kStep) {
      StepChannels<1, false>(x, a.key_dim, a.value_dim, 0, value + j, state + j, out + j);
    }
    if (j < a.value_dim) {
      StepChannels<1, true>(x, a.key_dim, a.value_dim, a.value_dim - j, value + j, state + j, out + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(DecodeHead);

int64_t KdaDecodeScratchFloats(int64_t key_dim) {
  return 3 * AlignUp<int64_t>(key_dim, 16);
}

void KdaDecodeHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch) {
  HWY_DYNAMIC_DISPATCH(DecodeHead)(args, segment, head, scratch);
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
