#pragma once

#include "kernels/moe/moe_sm90.h"

namespace perigee::kernels::cuda {

// Held index of entry k of a row: its expert here, the shared one for k = top_k, or -1.
__device__ __forceinline__ int HeldExpert(const MoeForwardArgs& args, int64_t row, int k) {
  if (k == args.top_k) return args.shape.shared ? args.shape.experts : -1;
  const int local = args.chosen[row * args.top_k + k] - args.first_expert;
  return local >= 0 && local < args.shape.experts ? local : -1;
}

}  // namespace perigee::kernels::cuda
