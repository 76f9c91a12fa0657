#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// One sequence's run of rows and its carried tail.
struct ConvSegment {
  int64_t q_begin = 0;  // first row in x and y
  int64_t q_len = 0;    // >= 1
  // [width - 1, channels] pre-convolution inputs before the first row, oldest first, zero before the start of
  // the sequence. On return: the last width - 1 rows of (old tail ++ new inputs), also when q_len < width
  // - 1.
  float* tail = nullptr;
};

// Causal depthwise convolution and SiLU (kimi-linear specification 3.4.2):
//   u[t, c] = sum_m taps[m, c] * x[t - (width - 1) + m, c],   y = silu(u)
// summed in ascending m with explicit multiply-adds. taps [width, channels]: the last one multiplies the
// current row. x, y [rows, channels]; y must not overlap x. Rows outside every segment are left alone.
void CausalConv1d(const KernelContext& context, ConstMatrixF x, ConstMatrixF taps,
                  std::span<const ConvSegment> segments, MatrixF y);

}  // namespace perigee::kernels
