#pragma once

#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// y = x * rsqrt(mean(x^2) + eps) * weight, per row; the mean is over the row's cols. y may be x. weight
// [cols].
void RmsNorm(const KernelContext& context, ConstMatrixF x, std::span<const float> weight, float eps,
             MatrixF y);

// residual += branch, then y = RmsNorm(residual). All [rows, cols].
void AddRmsNorm(const KernelContext& context, ConstMatrixF branch, MatrixF residual,
                std::span<const float> weight, float eps, MatrixF y);

// KDA's output norm, per row and head: y = x * rsqrt(mean(x^2) + eps) * weight * sigmoid(gate), the mean over
// one head's value_dim = weight.size() entries. x, gate, y [rows, heads * value_dim]; y may be x.
void GatedRmsNorm(const KernelContext& context, ConstMatrixF x, ConstMatrixF gate,
                  std::span<const float> weight, float eps, MatrixF y);

}  // namespace perigee::kernels
