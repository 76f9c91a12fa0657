#pragma once

#include "kernels/context.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// y = silu(gate) * up, elementwise, silu(z) = z * sigmoid(z). gate, up, y [rows, cols]; y may be gate or up.
void SiluMul(const KernelContext& context, ConstMatrix gate, ConstMatrix up, Matrix y);

// target += source, [rows, cols].
void AddInPlace(const KernelContext& context, ConstMatrix source, Matrix target);

}  // namespace perigee::kernels
