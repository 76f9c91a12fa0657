#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

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

ExpSum MergeTwo(ExpSum a, ExpSum b) {
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
HWY_EXPORT(MergeTwo);

constexpr int64_t kVocabParts = 8;

}  // namespace

ExpSum MergeExpSums(ExpSum left, ExpSum right) {
  return HWY_DYNAMIC_DISPATCH(MergeTwo)(left, right);
}

float LogOf(ExpSum total) {
  return static_cast<float>(total.max + std::log(static_cast<double>(total.sum)));
}

void ExpSums(const KernelContext& context, ConstMatrixF logits, std::span<const int64_t> bounds,
             std::span<ExpSum> sums) {
  const auto parts = static_cast<int64_t>(bounds.size()) - 1;
  PERIGEE_CHECK(static_cast<int64_t>(sums.size()) == logits.rows && std::has_single_bit(bounds.size() - 1));
  PERIGEE_CHECK(bounds.front() >= 0 && bounds.back() <= logits.cols);
  std::vector<ExpSum> of_parts(static_cast<size_t>(logits.rows * parts));
  ParallelRows(
      context, logits.rows * parts, logits.cols / parts, kHeavyGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = bounds[static_cast<size_t>(i % parts)];
          const int64_t last = bounds[static_cast<size_t>(i % parts) + 1];
          of_parts[static_cast<size_t>(i)] =
              HWY_DYNAMIC_DISPATCH(SumExp)(logits.Row(i / parts) + first, static_cast<size_t>(last - first));
        }
      });
  for (int64_t r = 0; r < logits.rows; ++r) {
    ExpSum* row = of_parts.data() + r * parts;
    for (int64_t step = 1; step < parts; step *= 2) {
      for (int64_t p = 0; p < parts; p += 2 * step) row[p] = MergeExpSums(row[p], row[p + step]);
    }
    sums[static_cast<size_t>(r)] = row[0];
  }
}

void LogSumExp(const KernelContext& context, ConstMatrixF logits, std::span<float> lse) {
  PERIGEE_CHECK(static_cast<int64_t>(lse.size()) == logits.rows && logits.cols >= 1);
  std::vector<int64_t> bounds;
  for (int64_t p = 0; p <= kVocabParts; ++p) bounds.push_back(PartBegin(p, logits.cols, kVocabParts));
  std::vector<ExpSum> sums(lse.size());
  ExpSums(context, logits, bounds, sums);
  std::transform(sums.begin(), sums.end(), lse.begin(), LogOf);
}

}  // namespace perigee::kernels
#endif  // HWY_ONCE
