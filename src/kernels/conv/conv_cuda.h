#pragma once

#include "kernels/context.h"
#include "tensor/cache_view.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

// The CUDA forms of conv.h, arguments checked.
namespace perigee::kernels::cuda {

void CausalConv1d(const KernelContext& context, ConstMatrix x, ConstMatrixF taps, StepSpan<Segment> segments,
                  const StateView& states, Matrix y);
// For every type, width and alignment. The launch depends on the number of segments and the longest alone.
void CausalConv1dPlain(const KernelContext& context, ConstMatrix x, ConstMatrixF taps,
                       StepSpan<Segment> segments, const StateView& states, Matrix y);

}  // namespace perigee::kernels::cuda
