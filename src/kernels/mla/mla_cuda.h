#pragma once

#include "kernels/mla/mla.h"

// The CUDA forms of mla.h, arguments checked. Used by mla.cc only.
namespace perigee::kernels::cuda {

void MlaAppend(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
               const PagedSegments& segments, const PagedKvView& cache);
// Launches depend on rows and the number of segments alone, up to kMlaDecodeRows rows.
void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
               const PagedSegments& segments, const PagedKvView& cache, Matrix out);
// Over expanded keys where cuDNN takes the widths and there are rows enough, else as MlaDecode.
void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
                const PagedSegments& segments, const PagedKvView& cache, Matrix out);

}  // namespace perigee::kernels::cuda
