#include "kernels/activation/activation_cpu.h"

#include "kernels/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/activation_cpu.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

void SiluMulRows(ConstMatrixF gate, ConstMatrixF up, MatrixF y, int64_t begin, int64_t end) {
  const size_t cols = static_cast<size_t>(y.cols);
  for (int64_t r = begin; r < end; ++r) {
    const float* g = gate.Row(r);
    const float* u = up.Row(r);
    float* out = y.Row(r);
    for (size_t c = 0; c < cols; c += kVecLanes) {
      const size_t left = cols - c;
      StoreUpTo(hn::Mul(Silu(LoadUpTo(g + c, left)), LoadUpTo(u + c, left)), out + c, left);
    }
  }
}

void AddRows(ConstMatrixF source, MatrixF target, int64_t begin, int64_t end) {
  const size_t cols = static_cast<size_t>(target.cols);
  for (int64_t r = begin; r < end; ++r) {
    const float* s = source.Row(r);
    float* t = target.Row(r);
    for (size_t c = 0; c < cols; c += kVecLanes) {
      const size_t left = cols - c;
      StoreUpTo(hn::Add(LoadUpTo(t + c, left), LoadUpTo(s + c, left)), t + c, left);
    }
  }
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {
namespace {
HWY_EXPORT(SiluMulRows);
HWY_EXPORT(AddRows);
}  // namespace

void SiluMul(const KernelContext& context, ConstMatrixF gate, ConstMatrixF up, MatrixF y) {
  ParallelRows(context, y.rows, y.cols, kHeavyGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SiluMulRows)(gate, up, y, begin, end);
  });
}

void AddInPlace(const KernelContext& context, ConstMatrixF source, MatrixF target) {
  ParallelRows(context, target.rows, target.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRows)(source, target, begin, end);
  });
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
