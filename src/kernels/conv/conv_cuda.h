#pragma once

#include "kernels/context.h"
#include "tensor/cache_view.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

// The CUDA form of conv.h, arguments checked. Used by conv.cc only.
namespace perigee::kernels::cuda {

void CausalConv1d(const KernelContext& context, ConstMatrix x, ConstMatrixF taps, StepSpan<Segment> segments,
                  const StateView& states, Matrix y);

}  // namespace perigee::kernels::cuda
