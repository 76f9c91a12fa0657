#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_gate_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include "kernels/kda/kda_cpu.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

// One head of one row: g = neg_exp_a * softplus(z + dt_bias).
void GateHead(const float* z, const float* dt_bias, float neg_exp_a, int64_t n, float* g) {
  const D d;
  for (int64_t c = 0; c < n; c += static_cast<int64_t>(kVecLanes)) {
    const auto left = static_cast<size_t>(n - c);
    const auto bent = Softplus(hn::Add(LoadUpTo(z + c, left), LoadUpTo(dt_bias + c, left)));
    StoreUpTo(hn::Mul(hn::Set(d, neg_exp_a), bent), g + c, left);
  }
}

void SigmoidRow(const float* x, int64_t n, float* y) {
  for (int64_t c = 0; c < n; c += static_cast<int64_t>(kVecLanes)) {
    const auto left = static_cast<size_t>(n - c);
    StoreUpTo(Sigmoid(LoadUpTo(x + c, left)), y + c, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(GateHead);
HWY_EXPORT(SigmoidRow);

void KdaGate(const KernelContext& context, ConstMatrixF z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, MatrixF g) {
  const auto heads = static_cast<int64_t>(neg_exp_a.size());
  const int64_t width = z.cols / heads;
  context.pool->ParallelRanges(z.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = h * width;
        HWY_DYNAMIC_DISPATCH(GateHead)
        (z.Row(r) + at, dt_bias.data() + at, neg_exp_a[static_cast<size_t>(h)], width, g.Row(r) + at);
      }
    }
  });
}

void Sigmoid(const KernelContext& context, ConstMatrixF x, MatrixF y) {
  context.pool->ParallelRanges(x.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) HWY_DYNAMIC_DISPATCH(SigmoidRow)(x.Row(r), x.cols, y.Row(r));
  });
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
