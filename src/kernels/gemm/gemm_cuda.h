#pragma once

#include <cstdint>
#include <span>

#include "kernels/gemm/gemm.h"

// The CUDA forms of gemm.h, arguments checked, at least one row. Used by gemm.cc and the families built on
// products.
namespace perigee::kernels::cuda {

void Gemm(const KernelContext& context, ConstMatrix x, const PackedWeight& weight, Matrix y);
void GemmInParts(const KernelContext& context, ConstMatrix x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, Matrix y);

}  // namespace perigee::kernels::cuda
