#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/math.h"
#include "kernels/parallel_rows.h"
#include "kernels/sampling/sampling.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/log_sum_exp.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

#ifndef PERIGEE_KERNELS_EXP_SUM
#define PERIGEE_KERNELS_EXP_SUM
namespace perigee::kernels {

// sum_v exp(x_v) as exp(max) * sum; (-inf, 0) when every term is zero. NaN terms are in the sum only.
struct ExpSum {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

}  // namespace perigee::kernels
#endif  // once for all targets

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ExpSum SumExp(const float* x, size_t n) {
  const Lanes16 nothing = Set16(-kInfinity);
  Lanes16 maxima = nothing;
  for (size_t i = 0; i < n; i += 16) {
    maxima = Max16(maxima, FirstLanes16(LoadUpTo16(x + i, n - i), n - i, nothing));
  }
  const float max = ReduceMax16(maxima);
  if (max == kInfinity) return {max, 1};
  // Short runs first, then the runs: the error stays that of a few dozen additions, not of thousands.
  constexpr size_t kRun = 64 * 16;
  // Without a finite term there is nothing to shift by; a NaN still shows in the sum.
  const V shift = hn::Set(D(), max == -kInfinity ? 0.0f : max);
  Lanes16 total = Set16(0.0f);
  for (size_t run = 0; run < n; run += kRun) {
    const size_t end = HWY_MIN(run + kRun, n);
    Lanes16 sum = Set16(0.0f);
    for (size_t i = run; i < end; i += 16) {
      Lanes16 v = FirstLanes16(LoadUpTo16(x + i, end - i), end - i, nothing);
      for (size_t k = 0; k < kVecsPer16; ++k) v.v[k] = Exp(hn::Sub(v.v[k], shift));
      sum = Add16(sum, v);
    }
    total = Add16(total, sum);
  }
  return {max, ReduceSum16(total)};
}

ExpSum MergeExpSums(ExpSum a, ExpSum b) {
  if (a.sum == 0) return b;
  if (b.sum == 0) return a;
  const float max = HWY_MAX(a.max, b.max);
  const auto scaled = [max](ExpSum part) HWY_ATTR {
    return part.max == max ? part.sum : part.sum * hn::GetLane(Exp(hn::Set(D(), part.max - max)));
  };
  return {max, scaled(a) + scaled(b)};
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels {
namespace {
HWY_EXPORT(SumExp);
HWY_EXPORT(MergeExpSums);

constexpr int64_t kVocabParts = 8;

float MergeParts(const ExpSum* row) {
  std::array<ExpSum, kVocabParts> parts;
  std::copy_n(row, kVocabParts, parts.begin());
  for (size_t step = 1; step < parts.size(); step *= 2) {
    for (size_t p = 0; p < parts.size(); p += 2 * step) {
      parts[p] = HWY_DYNAMIC_DISPATCH(MergeExpSums)(parts[p], parts[p + step]);
    }
  }
  return static_cast<float>(parts[0].max + std::log(static_cast<double>(parts[0].sum)));
}
}  // namespace

void LogSumExp(const KernelContext& context, ConstMatrixF logits, std::span<float> lse) {
  PERIGEE_CHECK(static_cast<int64_t>(lse.size()) == logits.rows && logits.cols >= 1);
  const Workspace::Scope scope(*context.workspace);
  static_assert(sizeof(ExpSum) == 2 * sizeof(float));
  auto* sums = reinterpret_cast<ExpSum*>(context.workspace->Floats(2 * kVocabParts * logits.rows));
  ParallelRows(context, logits.rows * kVocabParts, logits.cols / kVocabParts, kHeavyGrain,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t part = i % kVocabParts;
                   const int64_t first = PartBegin(part, logits.cols, kVocabParts);
                   const int64_t last = PartBegin(part + 1, logits.cols, kVocabParts);
                   sums[i] = HWY_DYNAMIC_DISPATCH(SumExp)(logits.Row(i / kVocabParts) + first,
                                                          static_cast<size_t>(last - first));
                 }
               });
  ParallelRows(context, logits.rows, kVocabParts, kHeavyGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) lse[static_cast<size_t>(r)] = MergeParts(sums + r * kVocabParts);
  });
}

}  // namespace perigee::kernels
#endif  // HWY_ONCE
