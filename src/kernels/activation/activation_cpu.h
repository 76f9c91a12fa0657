#pragma once

#include "kernels/context.h"
#include "tensor/matrix.h"

// The CPU's forms of activation.h, arguments checked. Used by activation.cc only.
namespace perigee::kernels::cpu {

void SiluMul(const KernelContext& context, ConstMatrixF gate, ConstMatrixF up, MatrixF y);
void AddInPlace(const KernelContext& context, ConstMatrixF source, MatrixF target);

}  // namespace perigee::kernels::cpu
