#include "kernels/cuda_common.cuh"
#include "kernels/norm/norm_cuda.h"

namespace perigee::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A block a row. With a branch, residual += branch first.
template <bool kAdd, typename T, typename R, typename Y>
__global__ void __launch_bounds__(kThreads)
    RmsNormKernel(View<const T> branch, View<R> x, const float* weight, float eps, View<Y> y) {
  const int64_t row = blockIdx.x;
  R* in = x.Row(row);
  float sum = 0;
  for (int64_t c = threadIdx.x; c < x.cols; c += kThreads) {
    float v = Load(in + c);
    if constexpr (kAdd) {
      v += Load(branch.Row(row) + c);
      Store(v, in + c);
    }
    sum += v * v;
  }
  const float scale = rsqrtf(BlockSum(sum) / static_cast<float>(x.cols) + eps);
  Y* out = y.Row(row);
  for (int64_t c = threadIdx.x; c < x.cols; c += kThreads) Store(Load(in + c) * scale * weight[c], out + c);
}

// A warp a row and head.
template <typename T, typename G, typename Y>
__global__ void __launch_bounds__(kThreads)
    GatedRmsNormKernel(View<const T> x, View<const G> gate, const float* weight, int64_t width, float eps,
                       View<Y> y) {
  const int64_t heads = x.cols / width;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (task >= x.rows * heads) return;
  const int64_t row = task / heads;
  const int64_t at = task % heads * width;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t c = lane; c < width; c += 32) {
    const float v = Load(x.Row(row) + at + c);
    sum += v * v;
  }
  const float scale = rsqrtf(WarpSum(sum) / static_cast<float>(width) + eps);
  for (int64_t c = lane; c < width; c += 32) {
    const float normed = Load(x.Row(row) + at + c) * scale * weight[c];
    Store(normed * SigmoidOf(Load(gate.Row(row) + at + c)), y.Row(row) + at + c);
  }
}

}  // namespace

void RmsNorm(const KernelContext& context, ConstMatrix x, std::span<const float> weight, float eps,
             Matrix y) {
  if (x.rows == 0) return;
  WithType(x.dtype, [&]<typename T>(T*) {
    WithType(y.dtype, [&]<typename Y>(Y*) {
      RmsNormKernel<false, T, const T, Y><<<static_cast<unsigned>(x.rows), kThreads, 0, StreamOf(context)>>>(
          {}, ViewOf<T>(x), weight.data(), eps, ViewOf<Y>(y));
    });
  });
  CheckLaunch();
}

void AddRmsNorm(const KernelContext& context, ConstMatrix branch, Matrix residual,
                std::span<const float> weight, float eps, Matrix y) {
  if (y.rows == 0) return;
  PERIGEE_CHECK(branch.dtype == residual.dtype && y.dtype == residual.dtype);
  WithType(residual.dtype, [&]<typename T>(T*) {
    RmsNormKernel<true, T, T, T><<<static_cast<unsigned>(y.rows), kThreads, 0, StreamOf(context)>>>(
        ViewOf<T>(branch), ViewOf<T>(residual), weight.data(), eps, ViewOf<T>(y));
  });
  CheckLaunch();
}

void GatedRmsNorm(const KernelContext& context, ConstMatrix x, ConstMatrix gate,
                  std::span<const float> weight, float eps, Matrix y) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t tasks = x.rows * (x.cols / width);
  if (tasks == 0) return;
  PERIGEE_CHECK(gate.dtype == y.dtype && x.dtype == y.dtype);
  WithType(x.dtype, [&]<typename T>(T*) {
    GatedRmsNormKernel<T, T, T><<<Blocks(tasks, kThreads / 32), kThreads, 0, StreamOf(context)>>>(
        ViewOf<T>(x), ViewOf<T>(gate), weight.data(), width, eps, ViewOf<T>(y));
  });
  CheckLaunch();
}

}  // namespace perigee::kernels::cuda
