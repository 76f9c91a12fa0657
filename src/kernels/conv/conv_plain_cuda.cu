#include "kernels/conv/conv_cuda.h"
#include "kernels/cuda_common.cuh"

namespace perigee::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 16;  // rows that a thread takes in turn

// Input `t` of a segment, counted from its first row: a negative one lies in the tail.
template <typename T>
__device__ float Input(const View<const T>& x, const Segment& s, const T* tail, int64_t history, int64_t t,
                       int64_t c) {
  return t >= 0 ? Load(x.Row(s.q_begin + t) + c) : Load(tail + (history + t) * x.cols + c);
}

// A thread a channel and run of rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ConvKernel(View<const T> x, View<const float> taps, const Segment* segments, const T* tails,
               int64_t tail_stride, View<T> y) {
  const Segment s = segments[blockIdx.z];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kRows;
  if (c >= x.cols || begin >= s.q_len) return;
  const int64_t end = begin + kRows < s.q_len ? begin + kRows : s.q_len;
  const T* tail = tails + s.slot * tail_stride;
  const int64_t history = taps.rows - 1;
  for (int64_t t = begin; t < end; ++t) {
    float u = 0;
    for (int64_t m = 0; m <= history; ++m) {
      u = fmaf(taps.Row(m)[c], Input(x, s, tail, history, t - history + m, c), u);
    }
    Store(u * SigmoidOf(u), y.Row(s.q_begin + t) + c);
  }
}

// The last rows of (old tail ++ new inputs). Ascending order is safe: an entry only takes from later ones.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AdvanceTailKernel(View<const T> x, int64_t history, const Segment* segments, T* tails,
                      int64_t tail_stride) {
  const Segment s = segments[blockIdx.y];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= x.cols || s.q_len == 0) return;
  T* tail = tails + s.slot * tail_stride;
  for (int64_t m = 0; m < history; ++m) {
    Store(Input(x, s, static_cast<const T*>(tail), history, s.q_len - history + m, c), tail + m * x.cols + c);
  }
}

}  // namespace

void CausalConv1dPlain(const KernelContext& context, ConstMatrix x, ConstMatrixF taps,
                       StepSpan<Segment> segments, const StateView& states, Matrix y) {
  const Segment* on_device = OnDevice(context, segments);
  int64_t longest = 1;  // also where all is padding
  for (const Segment& s : segments.host) longest = s.q_len > longest ? s.q_len : longest;
  const auto count = static_cast<unsigned>(segments.size());
  WithType(x.dtype, [&]<typename T>(T*) {
    T* tails = static_cast<T*>(states.conv);
    const View<const float> tap_view{taps.data, taps.rows, taps.cols, taps.stride};
    const unsigned channels = Blocks(x.cols, kThreads);
    ConvKernel<T><<<dim3(channels, Blocks(longest, kRows), count), kThreads, 0, StreamOf(context)>>>(
        ViewOf<T>(x), tap_view, on_device, tails, states.conv_stride, ViewOf<T>(y));
    AdvanceTailKernel<T><<<dim3(channels, count), kThreads, 0, StreamOf(context)>>>(
        ViewOf<T>(x), taps.rows - 1, on_device, tails, states.conv_stride);
  });
  CheckLaunch();
}

}  // namespace perigee::kernels::cuda
