#include "kernels/conv/conv.h"

#include <vector>

#include "base/check.h"
#include "kernels/conv/conv_cpu.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/dispatch.h"

namespace perigee::kernels {
namespace {

void RunOnCpu(const KernelContext& context, ConstMatrixF x, ConstMatrixF taps,
              std::span<const Segment> segments, const StateView& states, MatrixF y) {
  std::vector<cpu::ConvSegment> with_tails;
  for (const Segment& s : segments) {
    if (s.q_len > 0) with_tails.push_back({s.q_begin, s.q_len, states.Conv(s.slot)});
  }
  cpu::CausalConv1d(context, x, taps, with_tails, y);
}

}  // namespace

void CausalConv1d(const KernelContext& context, ConstMatrix x, ConstMatrixF taps, StepSpan<Segment> segments,
                  const StateView& states, Matrix y) {
  PERIGEE_CHECK(taps.rows >= 2 && taps.cols == x.cols && y.cols == x.cols && y.rows == x.rows);
  PERIGEE_CHECK(segments.empty() || states.conv != nullptr);
  for (const Segment& s : segments.host) {
    PERIGEE_CHECK(s.q_len >= 0 && s.q_begin >= 0 && s.q_begin + s.q_len <= x.rows);
  }
  PERIGEE_DISPATCH(context, RunOnCpu(context, x.As<float>(), taps, segments.host, states, y.As<float>()),
                   cuda::CausalConv1d(context, x, taps, segments, states, y));
}

}  // namespace perigee::kernels
