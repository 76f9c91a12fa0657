#include "kernels/conv/conv_cpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/conv_cpu.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

// inputs: the rows under the taps, oldest first.
void ConvRow(std::span<const float* const> inputs, ConstMatrixF taps, float* y) {
  const size_t channels = static_cast<size_t>(taps.cols);
  for (size_t c = 0; c < channels; c += kVecLanes) {
    const size_t left = channels - c;
    V u = hn::Zero(D());
    for (size_t m = 0; m < inputs.size(); ++m) {
      u = hn::MulAdd(LoadUpTo(taps.Row(static_cast<int64_t>(m)) + c, left), LoadUpTo(inputs[m] + c, left), u);
    }
    StoreUpTo(Silu(u), y + c, left);
  }
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {
namespace {
HWY_EXPORT(ConvRow);

// Row `t` of a segment counted from its first row: a negative one lies in the tail.
const float* InputRow(ConstMatrixF x, const ConvSegment& segment, int64_t history, int64_t t) {
  return t >= 0 ? x.Row(segment.q_begin + t) : segment.tail + (history + t) * x.cols;
}

void ConvRows(ConstMatrixF x, ConstMatrixF taps, const ConvSegment& segment, int64_t begin, int64_t end,
              MatrixF y) {
  const int64_t history = taps.rows - 1;
  std::vector<const float*> inputs(static_cast<size_t>(taps.rows));
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t m = 0; m < taps.rows; ++m) {
      inputs[static_cast<size_t>(m)] = InputRow(x, segment, history, t - history + m);
    }
    HWY_DYNAMIC_DISPATCH(ConvRow)(inputs, taps, y.Row(segment.q_begin + t));
  }
}

// The last rows of (old tail ++ new inputs). Ascending order is safe: an entry only takes from later ones.
void AdvanceTail(ConstMatrixF x, const ConvSegment& segment, int64_t history) {
  for (int64_t m = 0; m < history; ++m) {
    std::memcpy(segment.tail + m * x.cols, InputRow(x, segment, history, segment.q_len - history + m),
                static_cast<size_t>(x.cols) * sizeof(float));
  }
}
}  // namespace

void CausalConv1d(const KernelContext& context, ConstMatrixF x, ConstMatrixF taps,
                  std::span<const ConvSegment> segments, MatrixF y) {
  // starts[s]: rows of the segments before s.
  std::vector<int64_t> starts(1, 0);
  for (const ConvSegment& s : segments) starts.push_back(starts.back() + s.q_len);
  ParallelRows(context, starts.back(), x.cols, kHeavyGrain, [&](int64_t begin, int64_t end) {
    size_t s =
        static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin()) - 1;
    for (; s < segments.size() && starts[s] < end; ++s) {
      ConvRows(x, taps, segments[s], std::max(begin, starts[s]) - starts[s],
               std::min(end, starts[s + 1]) - starts[s], y);
    }
  });
  // Tails are read by the first rows of a segment, so they move on when all rows are done.
  const int64_t history = taps.rows - 1;
  ParallelRows(context, static_cast<int64_t>(segments.size()), history * x.cols, kLightGrain,
               [&](int64_t begin, int64_t end) {
                 for (int64_t s = begin; s < end; ++s)
                   AdvanceTail(x, segments[static_cast<size_t>(s)], history);
               });
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
