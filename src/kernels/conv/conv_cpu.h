#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "tensor/matrix.h"

// The CPU's form of conv.h, arguments checked. Used by conv.cc only.
namespace perigee::kernels::cpu {

struct ConvSegment {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  float* tail = nullptr;  // [width - 1, channels]
};

void CausalConv1d(const KernelContext& context, ConstMatrixF x, ConstMatrixF taps,
                  std::span<const ConvSegment> segments, MatrixF y);

}  // namespace perigee::kernels::cpu
