#pragma once

#include "kernels/draw/draw.h"

// The CUDA form of draw.h, used by draw.cc only.
namespace perigee::kernels::cuda {

void Draw(const DrawnMatrix& matrix, BFloat16* out);

}  // namespace perigee::kernels::cuda
