#include "kernels/norm/norm_cpu.h"

#include <cmath>

#include "kernels/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm_cpu.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

HWY_INLINE float InverseRms(const Lanes16& squares, size_t n, float eps) {
  return 1.0f / std::sqrt(ReduceSum16(squares) / static_cast<float>(n) + eps);
}

HWY_INLINE Lanes16 SumSquares(const float* x, size_t n) {
  Lanes16 sum = Set16(0.0f);
  for (size_t i = 0; i < n; i += 16) {
    const Lanes16 v = LoadUpTo16(x + i, n - i);
    sum = MulAdd16(v, v, sum);
  }
  return sum;
}

// target += source; returns the sums of squares of the new target.
HWY_INLINE Lanes16 AddSumSquares(const float* source, float* target, size_t n) {
  Lanes16 sum = Set16(0.0f);
  for (size_t i = 0; i < n; i += 16) {
    const Lanes16 v = Add16(LoadUpTo16(target + i, n - i), LoadUpTo16(source + i, n - i));
    StoreUpTo16(v, target + i, n - i);
    sum = MulAdd16(v, v, sum);
  }
  return sum;
}

HWY_INLINE void ScaleInto(const float* x, float scale, const float* weight, float* y, size_t n) {
  const V s = hn::Set(D(), scale);
  for (size_t i = 0; i < n; i += kVecLanes) {
    const size_t left = n - i;
    StoreUpTo(hn::Mul(hn::Mul(LoadUpTo(x + i, left), s), LoadUpTo(weight + i, left)), y + i, left);
  }
}

void RmsNormRows(ConstMatrixF x, const float* weight, float eps, MatrixF y, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(x.cols);
  for (int64_t r = begin; r < end; ++r) {
    const float scale = InverseRms(SumSquares(x.Row(r), n), n, eps);
    ScaleInto(x.Row(r), scale, weight, y.Row(r), n);
  }
}

void AddRmsNormRows(ConstMatrixF branch, MatrixF residual, const float* weight, float eps, MatrixF y,
                    int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(residual.cols);
  for (int64_t r = begin; r < end; ++r) {
    const float scale = InverseRms(AddSumSquares(branch.Row(r), residual.Row(r), n), n, eps);
    ScaleInto(residual.Row(r), scale, weight, y.Row(r), n);
  }
}

void GatedRmsNormRows(ConstMatrixF x, ConstMatrixF gate, std::span<const float> weight, float eps, MatrixF y,
                      int64_t begin, int64_t end) {
  const size_t n = weight.size();
  const size_t cols = static_cast<size_t>(x.cols);
  for (int64_t r = begin; r < end; ++r) {
    for (size_t head = 0; head < cols; head += n) {
      const float* in = x.Row(r) + head;
      const float* g = gate.Row(r) + head;
      float* out = y.Row(r) + head;
      const V scale = hn::Set(D(), InverseRms(SumSquares(in, n), n, eps));
      for (size_t i = 0; i < n; i += kVecLanes) {
        const size_t left = n - i;
        const V normed = hn::Mul(hn::Mul(LoadUpTo(in + i, left), scale), LoadUpTo(weight.data() + i, left));
        StoreUpTo(hn::Mul(normed, Sigmoid(LoadUpTo(g + i, left))), out + i, left);
      }
    }
  }
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {
namespace {
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(AddRmsNormRows);
HWY_EXPORT(GatedRmsNormRows);
}  // namespace

void RmsNorm(const KernelContext& context, ConstMatrixF x, std::span<const float> weight, float eps,
             MatrixF y) {
  ParallelRows(context, x.rows, x.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(x, weight.data(), eps, y, begin, end);
  });
}

void AddRmsNorm(const KernelContext& context, ConstMatrixF branch, MatrixF residual,
                std::span<const float> weight, float eps, MatrixF y) {
  ParallelRows(context, y.rows, y.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRmsNormRows)(branch, residual, weight.data(), eps, y, begin, end);
  });
}

void GatedRmsNorm(const KernelContext& context, ConstMatrixF x, ConstMatrixF gate,
                  std::span<const float> weight, float eps, MatrixF y) {
  ParallelRows(context, x.rows, x.cols, kHeavyGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GatedRmsNormRows)(x, gate, weight, eps, y, begin, end);
  });
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
