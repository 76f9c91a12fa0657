#pragma once

#include <cstdint>

#include "kernels/mla/mla.h"
#include "kernels/mla/mla_sm90.h"

// What the files of the CUDA form of mla.h share.
namespace perigee::kernels::cuda {

// Segments and tables in the device's memory, copied there if nobody did before.
MlaRuns RunsOf(const KernelContext& context, const PagedSegments& segments);
MlaPool PoolOf(const MlaDims& dims, const PagedKvView& cache);

// MlaAppendRecords for every width and alignment; `longest` segment's rows at least.
void MlaAppendPlain(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
                    const MlaRuns& runs, int64_t longest, const PagedKvView& cache);
// The slices of q that meet the shared key, [rows, num_heads * qk], to their place in absorbed queries
// [rows, num_heads * record].
void CopySharedQueries(const KernelContext& context, const MlaDims& dims, ConstMatrix q, Matrix queries);

// Whether MlaPrefillExpanded takes these widths and rows.
bool CanExpand(const MlaDims& dims, ConstMatrix q, const PagedKvView& cache);
// MlaPrefill by cuDNN's kernel over expanded keys.
void MlaPrefillExpanded(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights,
                        ConstMatrix q, const PagedSegments& segments, const PagedKvView& cache, Matrix out);

}  // namespace perigee::kernels::cuda
