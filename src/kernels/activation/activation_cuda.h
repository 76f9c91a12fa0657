#pragma once

#include "kernels/context.h"
#include "tensor/matrix.h"

// The CUDA forms of activation.h, arguments checked. Used by activation.cc only.
namespace perigee::kernels::cuda {

void SiluMul(const KernelContext& context, ConstMatrix gate, ConstMatrix up, Matrix y);
void AddInPlace(const KernelContext& context, ConstMatrix source, Matrix target);

}  // namespace perigee::kernels::cuda
