#pragma once

#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

// The CUDA forms of norm.h, arguments checked; sums in fp32. Used by norm.cc only.
namespace perigee::kernels::cuda {

void RmsNorm(const KernelContext& context, ConstMatrix x, std::span<const float> weight, float eps, Matrix y);
void AddRmsNorm(const KernelContext& context, ConstMatrix branch, Matrix residual,
                std::span<const float> weight, float eps, Matrix y);
void GatedRmsNorm(const KernelContext& context, ConstMatrix x, ConstMatrix gate,
                  std::span<const float> weight, float eps, Matrix y);

}  // namespace perigee::kernels::cuda
