#include <cstdint>
#include <vector>

#include "kernels/conv/conv_cuda.h"
#include "kernels/conv/conv_hopper.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {
namespace {

constexpr int64_t kVector = 8;  // channels that the vector form takes at a time
constexpr int64_t kMaxWidth = 8;

template <typename M>
bool RowsAreAligned(const M& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride % kVector == 0;
}

// The vector form has its runs in the launch, so a step that may be recorded (a row a segment) does not use
// it.
bool TakesVectors(ConstMatrix x, ConstMatrixF taps, StepSpan<Segment> segments, const StateView& states,
                  Matrix y) {
  bool one_row_each = true;
  for (const Segment& s : segments.host) one_row_each = one_row_each && s.q_len <= 1;
  return !one_row_each && x.dtype == DType::kBF16 && x.cols % kVector == 0 && taps.rows <= kMaxWidth &&
         taps.stride == taps.cols && RowsAreAligned(x) && RowsAreAligned(y) &&
         reinterpret_cast<uintptr_t>(taps.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(states.conv) % 16 == 0 && states.conv_stride % kVector == 0;
}

}  // namespace

void CausalConv1d(const KernelContext& context, ConstMatrix x, ConstMatrixF taps, StepSpan<Segment> segments,
                  const StateView& states, Matrix y) {
  if (segments.empty()) return;
  PERIGEE_CHECK(x.dtype == y.dtype && states.conv_dtype == x.dtype);
  if (!TakesVectors(x, taps, segments, states, y)) {
    return CausalConv1dPlain(context, x, taps, segments, states, y);
  }
  std::vector<ConvCudaRun> runs;
  auto* tails = static_cast<__nv_bfloat16*>(states.conv);
  for (const Segment& s : segments.host) {
    if (s.q_len > 0) runs.push_back({s.q_begin, s.q_len, tails + s.slot * states.conv_stride});
  }
  const ConvCudaArgs args{.channels = x.cols,
                          .width = static_cast<int>(taps.rows),
                          .x = reinterpret_cast<const __nv_bfloat16*>(x.data),
                          .x_stride = x.stride,
                          .taps = taps.data,
                          .runs = runs,
                          .y = reinterpret_cast<__nv_bfloat16*>(y.data),
                          .y_stride = y.stride};
  PERIGEE_CUDA_CHECK(CausalConv1dCuda(args, static_cast<cudaStream_t>(context.stream.handle)));
}

}  // namespace perigee::kernels::cuda
