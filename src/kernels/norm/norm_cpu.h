#pragma once

#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

// The CPU's forms of norm.h, arguments checked. Used by norm.cc only.
namespace perigee::kernels::cpu {

void RmsNorm(const KernelContext& context, ConstMatrixF x, std::span<const float> weight, float eps,
             MatrixF y);
void AddRmsNorm(const KernelContext& context, ConstMatrixF branch, MatrixF residual,
                std::span<const float> weight, float eps, MatrixF y);
void GatedRmsNorm(const KernelContext& context, ConstMatrixF x, ConstMatrixF gate,
                  std::span<const float> weight, float eps, MatrixF y);

}  // namespace perigee::kernels::cpu
