#pragma once

#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// y = x * rsqrt(mean(x^2) + eps) * weight, per row; the mean is over the row's cols. y may be x. weight
// [cols].
void RmsNorm(const KernelContext& context, ConstMatrix x, std::span<const float> weight, float eps, Matrix y);

// residual += branch, then y = RmsNorm(residual). All [rows, cols].
void AddRmsNorm(const KernelContext& context, ConstMatrix branch, Matrix residual,
                std::span<const float> weight, float eps, Matrix y);

// KDA's output norm, per row and head: y = x * rsqrt(mean(x^2) + eps) * weight * sigmoid(gate), the mean over
// one head's value_dim = weight.size() entries. x, gate, y [rows, heads * value_dim]; y may be x.
void GatedRmsNorm(const KernelContext& context, ConstMatrix x, ConstMatrix gate,
                  std::span<const float> weight, float eps, Matrix y);

}  // namespace perigee::kernels
