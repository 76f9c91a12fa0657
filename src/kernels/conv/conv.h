#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tensor/cache_view.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

namespace perigee::kernels {

// Causal depthwise convolution and SiLU (kimi-linear specification 3.4.2):
//   u[t, c] = sum_m taps[m, c] * x[t - (width - 1) + m, c],   y = silu(u)
// summed in ascending m with explicit multiply-adds. taps [width, channels]: the last one multiplies the
// current row. x, y [rows, channels]; y must not overlap x. Rows outside every segment are left alone.
// The rows before a segment's first are the conv tail of its slot, [width - 1, channels], zero before the
// start of the sequence; it is replaced by the last width - 1 rows of (old tail ++ new inputs), also when
// q_len < width - 1. One segment a slot. A segment of no rows (padding) touches nothing.
void CausalConv1d(const KernelContext& context, ConstMatrix x, ConstMatrixF taps, StepSpan<Segment> segments,
                  const StateView& states, Matrix y);

}  // namespace perigee::kernels
