#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/context.h"
#include "tensor/cuda_check.h"
#include "tensor/matrix.h"
#include "tensor/step_span.h"

// What the CUDA kernels share: element types, reductions, launching. Included by *_cuda.cu files only.
namespace perigee::kernels::cuda {

// A matrix as a kernel takes it.
template <typename T>
struct View {
  T* data;
  int64_t rows;
  int64_t cols;
  int64_t stride;

  __device__ T* Row(int64_t r) const { return data + r * stride; }
};

__device__ inline float Load(const float* p) {
  return *p;
}
__device__ inline float Load(const __nv_bfloat16* p) {
  return __bfloat162float(*p);
}
__device__ inline float Load(const __half* p) {
  return __half2float(*p);
}
__device__ inline void Store(float v, float* p) {
  *p = v;
}
__device__ inline void Store(float v, __nv_bfloat16* p) {
  *p = __float2bfloat16_rn(v);
}

__device__ inline float SigmoidOf(float x) {
  return 1.0f / (1.0f + __expf(-x));
}

__device__ inline float WarpSum(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}

// Of all threads of the block, at most 1024, a multiple of 32; every thread gets the sum. Always the same
// order.
__device__ inline float BlockSum(float v) {
  __shared__ float partial[32];
  v = WarpSum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  const int warps = blockDim.x / 32;
  return WarpSum(threadIdx.x % 32 < warps ? partial[threadIdx.x % 32] : 0.0f);
}

inline cudaStream_t StreamOf(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

// Calls f with a null pointer of the element type: float or __nv_bfloat16.
template <typename F>
void WithType(DType dtype, const F& f) {
  if (dtype == DType::kF32) {
    f(static_cast<float*>(nullptr));
  } else {
    PERIGEE_CHECK(dtype == DType::kBF16);
    f(static_cast<__nv_bfloat16*>(nullptr));
  }
}

template <typename T>
View<T> ViewOf(const Matrix& m) {
  return {reinterpret_cast<T*>(m.data), m.rows, m.cols, m.stride};
}
template <typename T>
View<const T> ViewOf(const ConstMatrix& m) {
  return {reinterpret_cast<const T*>(m.data), m.rows, m.cols, m.stride};
}

// The array on the device, copied there if nobody did before.
template <typename T>
const T* OnDevice(const KernelContext& context, const StepSpan<T>& span) {
  if (span.device != nullptr || span.empty()) return span.device;
  return context.step->Mirror(span.host).device;
}

inline void CheckLaunch() {
  PERIGEE_CUDA_CHECK(cudaGetLastError());
}

inline unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace perigee::kernels::cuda
