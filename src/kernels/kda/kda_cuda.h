#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_step.h"
#include "tensor/matrix.h"

// The CUDA forms of kda.h and kda_step.h, arguments checked. Used by kda.cc and kda_step.cc only.
namespace perigee::kernels::cuda {

// The form on tensor cores at its widths, else KdaDecode.
void KdaPrefill(const KernelContext& context, const KdaArgs& args);
// Row after row, for every width up to 256. The launch depends on the number of segments alone.
void KdaDecode(const KernelContext& context, const KdaArgs& args);
// In one kernel, for heads of 128 x 128 and four taps in BF16; false: not these, and nothing was done.
bool KdaStepFused(const KernelContext& context, const KdaStepArgs& args);
void KdaGate(const KernelContext& context, ConstMatrix z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, Matrix g);
void Sigmoid(const KernelContext& context, ConstMatrix x, Matrix y);

}  // namespace perigee::kernels::cuda
