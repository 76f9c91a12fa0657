#pragma once

#include <cstdint>
#include <span>

#include "kernels/gemm/gemm.h"

// The CPU's forms of gemm.h, arguments checked, at least one row. Used by gemm.cc only.
namespace perigee::kernels::cpu {

void Gemm(const KernelContext& context, ConstMatrixF x, const PackedWeight& weight, MatrixF y);
void GemmInParts(const KernelContext& context, ConstMatrixF x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, MatrixF y);

}  // namespace perigee::kernels::cpu
