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

// Eight neighbours of a row as 16 bytes.
struct Vector {
  float v[8];

  __device__ static Vector Of(const __nv_bfloat16* p) {
    const uint4 raw = *reinterpret_cast<const uint4*>(p);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
    Vector x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = __bfloat1622float2(pairs[i]);
      x.v[2 * i] = f.x;
      x.v[2 * i + 1] = f.y;
    }
    return x;
  }
  __device__ void StoreTo(__nv_bfloat16* p) const {
    uint4 raw;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    *reinterpret_cast<uint4*>(p) = raw;
  }
  __device__ float SquareSum() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += v[i] * v[i];
    return sum;
  }
};

constexpr int kMaxVectors = 1024;  // of a row: a thread each

// RmsNormKernel, a vector a thread: a row is read once, and what is normalised is the sum before it was
// rounded to be stored.
template <bool kAdd>
__global__ void __launch_bounds__(kMaxVectors)
    RmsNormVectorKernel(View<const __nv_bfloat16> branch, View<__nv_bfloat16> x, const float* weight,
                        float eps, View<__nv_bfloat16> y) {
  const int64_t row = blockIdx.x, c = threadIdx.x * 8;
  const bool inside = c < x.cols;
  Vector values{};
  if (inside) {
    values = Vector::Of(x.Row(row) + c);
    if constexpr (kAdd) {
      const Vector more = Vector::Of(branch.Row(row) + c);
#pragma unroll
      for (int i = 0; i < 8; ++i) values.v[i] += more.v[i];
      values.StoreTo(x.Row(row) + c);
    }
  }
  const float scale = rsqrtf(BlockSum(values.SquareSum()) / static_cast<float>(x.cols) + eps);
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) values.v[i] *= scale * weight[c + i];
  values.StoreTo(y.Row(row) + c);
}

// GatedRmsNormKernel, a block a row and a vector a thread at a time; kLanes neighbours have a head.
template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    GatedRmsNormVectorKernel(View<const __nv_bfloat16> x, View<const __nv_bfloat16> gate, const float* weight,
                             float eps, View<__nv_bfloat16> y) {
  const int64_t row = blockIdx.x;
  const int64_t end = (x.cols + 255) / 256 * 256;  // whole warps take part in the sums
  for (int64_t c = threadIdx.x * 8; c < end; c += kThreads * 8) {
    const bool inside = c < x.cols;
    Vector values{}, gates{};
    if (inside) {
      values = Vector::Of(x.Row(row) + c);
      gates = Vector::Of(gate.Row(row) + c);
    }
    float sum = values.SquareSum();
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const float scale = rsqrtf(sum / (8 * kLanes) + eps);
    if (!inside) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values.v[i] *= scale * weight[c % (8 * kLanes) + i] * SigmoidOf(gates.v[i]);
    }
    values.StoreTo(y.Row(row) + c);
  }
}

bool AreVectors(const ConstMatrix& m) {
  return m.dtype == DType::kBF16 && m.cols % 8 == 0 && m.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

template <bool kAdd>
void RmsNormOfVectors(const KernelContext& context, ConstMatrix branch, Matrix x, const float* weight,
                      float eps, Matrix y) {
  const unsigned threads = Blocks(x.cols / 8, 32) * 32;
  RmsNormVectorKernel<kAdd><<<static_cast<unsigned>(x.rows), threads, 0, StreamOf(context)>>>(
      ViewOf<__nv_bfloat16>(branch), ViewOf<__nv_bfloat16>(x), weight, eps, ViewOf<__nv_bfloat16>(y));
  CheckLaunch();
}

}  // namespace

void RmsNorm(const KernelContext& context, ConstMatrix x, std::span<const float> weight, float eps,
             Matrix y) {
  if (x.rows == 0) return;
  if (AreVectors(x) && AreVectors(y) && x.cols <= 8 * kMaxVectors) {
    // Without a branch the kernel only reads x.
    const Matrix in{const_cast<std::byte*>(x.data), x.dtype, x.rows, x.cols, x.stride};
    return RmsNormOfVectors<false>(context, {}, in, weight.data(), eps, y);
  }
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
  if (AreVectors(branch) && AreVectors(residual) && AreVectors(y) && y.cols <= 8 * kMaxVectors) {
    return RmsNormOfVectors<true>(context, branch, residual, weight.data(), eps, y);
  }
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
  // Heads of the family's width.
  if (width == 128 && AreVectors(x) && AreVectors(gate) && AreVectors(y)) {
    GatedRmsNormVectorKernel<16><<<static_cast<unsigned>(x.rows), kThreads, 0, StreamOf(context)>>>(
        ViewOf<__nv_bfloat16>(x), ViewOf<__nv_bfloat16>(gate), weight.data(), eps, ViewOf<__nv_bfloat16>(y));
    return CheckLaunch();
  }
  WithType(x.dtype, [&]<typename T>(T*) {
    GatedRmsNormKernel<T, T, T><<<Blocks(tasks, kThreads / 32), kThreads, 0, StreamOf(context)>>>(
        ViewOf<T>(x), ViewOf<T>(gate), weight.data(), width, eps, ViewOf<T>(y));
  });
  CheckLaunch();
}

}  // namespace perigee::kernels::cuda
