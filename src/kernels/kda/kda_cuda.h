#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/kda/kda.h"
#include "tensor/matrix.h"

// The CUDA forms of kda.h, arguments checked. Used by kda.cc only.
namespace perigee::kernels::cuda {

void KdaPrefill(const KernelContext& context, const KdaArgs& args);
void KdaDecode(const KernelContext& context, const KdaArgs& args);
void KdaGate(const KernelContext& context, ConstMatrix z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, Matrix g);
void Sigmoid(const KernelContext& context, ConstMatrix x, Matrix y);

}  // namespace perigee::kernels::cuda
