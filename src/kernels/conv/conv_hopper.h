#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace perigee::kernels {

// One sequence's run of rows and its carried tail.
struct ConvCudaRun {
  int64_t q_begin = 0;
  int64_t q_len = 0;  // >= 1
  // [width - 1, channels] inputs before the first row, oldest first; replaced by the last width - 1 rows of
  // (old tail ++ new inputs).
  __nv_bfloat16* tail = nullptr;
};

struct ConvCudaArgs {
  int64_t channels = 0;              // a multiple of 8
  int width = 0;                     // 2..8
  const __nv_bfloat16* x = nullptr;  // [rows, channels], 16-byte aligned rows
  int64_t x_stride = 0;
  const float* taps = nullptr;  // [width, channels]: the last one multiplies the current row
  std::span<const ConvCudaRun> runs;
  __nv_bfloat16* y = nullptr;  // [rows, channels]; must not overlap x
  int64_t y_stride = 0;
};

// Causal depthwise convolution and SiLU (kernels/conv/conv.h), summed in ascending tap with fused
// multiply-adds; also the update of one row (q_len = 1). The spans are read before the call returns; rows
// outside every run are left alone. Errors: cudaErrorInvalidValue for what is outside the comments above;
// else the error of the launch.
cudaError_t CausalConv1dCuda(const ConvCudaArgs& args, cudaStream_t stream);

}  // namespace perigee::kernels
