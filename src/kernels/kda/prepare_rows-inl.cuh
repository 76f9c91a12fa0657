#pragma once

#include <cstdint>

#include "kernels/kda/hopper-inl.cuh"
#include "kernels/kda/kda_prefill_hopper.h"

// The inputs of the first prefill kernel: the rows of one thread and their decays.
namespace perigee::kernels::kda_hopper {

inline constexpr int kBlockRows = 16;  // rows of a thread

__device__ __forceinline__ float2 operator*(float2 a, float2 b) {
  return {a.x * b.x, a.y * b.y};
}
__device__ __forceinline__ uint32_t ToHalf(float2 a) {
  return PackHalf(a.x, a.y);
}
__device__ __forceinline__ float2 FromBf16(uint32_t bits) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u)};
}

// The rows of one thread.
struct Rows {
  uint32_t q[kBlockRows];  // pairs of channels: first bf16 as loaded, then normalised 16-bit floats
  uint32_t k[kBlockRows];
  float2 a[kBlockRows];  // exp(g)
};

// 2^x; what would be denormal is zero.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2E = 1.4426950408889634f;

// log(1 + e^x), to about 1e-7 of itself: where e^-|x| is small the sum would forget it, so a series takes
// over.
__device__ __forceinline__ float Softplus(float x) {
  const float t = Exp2(-kLog2E * fabsf(x));
  const float series = t * fmaf(t, fmaf(t, fmaf(t, -0.25f, 1.0f / 3.0f), -0.5f), 1.0f);
  const float log = t < 0.015625f ? series : __logf(1.0f + t);
  return fmaxf(x, 0.0f) + log;
}

// Rows of 16-bit pairs or of float pairs. kWhole: all rows of the thread are inside the run.
template <bool kWhole, typename T>
__device__ __forceinline__ T LoadPair(const void* from, int64_t row_bytes, int i, int inside) {
  const auto* at = reinterpret_cast<const T*>(static_cast<const uint8_t*>(from) + i * row_bytes);
  if constexpr (kWhole) return __ldg(at);
  return i < inside ? __ldg(at) : T{};
}

template <bool kFromZ, bool kWhole>
__device__ __forceinline__ void LoadRaw(const KdaCudaPrefillArgs& args, int64_t row, int inside,
                                        int64_t column, Rows& r) {
  const __nv_bfloat16* q = args.q + row * args.q_stride + column;
  const __nv_bfloat16* k = args.k + row * args.k_stride + column;
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) r.q[i] = LoadPair<kWhole, uint32_t>(q, 2 * args.q_stride, i, inside);
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) r.k[i] = LoadPair<kWhole, uint32_t>(k, 2 * args.k_stride, i, inside);
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    if constexpr (kFromZ) {
      const __nv_bfloat16* z = args.decay.z + row * args.decay.z_stride + column;
      r.a[i].x = __uint_as_float(LoadPair<kWhole, uint32_t>(z, 2 * args.decay.z_stride, i, inside));
    } else {
      const float* g = args.decay.g + row * args.decay.g_stride + column;
      r.a[i] = LoadPair<kWhole, float2>(g, 4 * args.decay.g_stride, i, inside);
    }
  }
}

// The thread's rows, `row` the first of them; rows past the end of the run are zero and decay nothing.
template <bool kFromZ>
__device__ __forceinline__ void LoadRows(const KdaCudaPrefillArgs& args, int64_t row, int inside, int head,
                                         int pair, Rows& r) {
  const int64_t column = static_cast<int64_t>(head) * kWidth + 2 * pair;
  if (inside >= kBlockRows)
    LoadRaw<kFromZ, true>(args, row, inside, column, r);
  else
    LoadRaw<kFromZ, false>(args, row, inside, column, r);
  if constexpr (kFromZ) {
    const float2 bias = __ldg(reinterpret_cast<const float2*>(args.decay.dt_bias + column));
    const float slope = kLog2E * __ldg(args.decay.neg_exp_a + head);
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) {
      const float2 z = FromBf16(__float_as_uint(r.a[i].x));
      const float use = i < inside ? slope : 0.0f;
      r.a[i] = {Exp2(use * Softplus(z.x + bias.x)), Exp2(use * Softplus(z.y + bias.y))};
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) r.a[i] = {Exp2(kLog2E * r.a[i].x), Exp2(kLog2E * r.a[i].y)};
  }
}

// Asks for the inputs of the chunk that takes this block's place on the multiprocessor: what is in the L2
// cache by then waits a third as long.
template <bool kFromZ>
__device__ __forceinline__ void PrefetchRows(const KdaCudaPrefillArgs& args, int64_t row, int rows, int head,
                                             int thread) {
  const int at = thread >> 2, part = thread & 3;
  if (at >= rows) return;
  const int64_t column = static_cast<int64_t>(head) * kWidth;
  const auto prefetch = [](const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); };
  const int64_t r = row + at;
  prefetch(part < 2 ? args.q + r * args.q_stride + column + part * 64
                    : args.k + r * args.k_stride + column + (part - 2) * 64);
  if constexpr (!kFromZ)
    prefetch(args.decay.g + r * args.decay.g_stride + column + part * 32);
  else if (part < 2)
    prefetch(args.decay.z + r * args.decay.z_stride + column + part * 64);
}

}  // namespace perigee::kernels::kda_hopper
