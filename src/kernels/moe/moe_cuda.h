#pragma once

#include <span>

#include "kernels/moe/moe.h"

// The CUDA forms of moe.h, arguments checked. Used by moe.cc only.
namespace perigee::kernels::cuda {

void ListExperts(MoeWeights& weights);
void RouteTopK(const KernelContext& context, ConstMatrixF logits, std::span<const float> bias,
               const RouterOptions& options, const Routing& routing);
void MoeForward(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                ConstMatrix x, Matrix y);

// The same where Hopper's form does not take the shape; at least one row.
void RouteTopKPlain(const KernelContext& context, ConstMatrixF logits, std::span<const float> bias,
                    const RouterOptions& options, const Routing& routing);
void MoeForwardPlain(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                     ConstMatrix x, Matrix y);

}  // namespace perigee::kernels::cuda
