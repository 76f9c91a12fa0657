#pragma once

#include "kernels/context.h"
#include "kernels/rows/rows.h"
#include "tensor/matrix.h"
#include "tensor/step_span.h"

// The CUDA forms of rows.h, arguments checked. Used by rows.cc only.
namespace perigee::kernels::cuda {

void CopyRows(const KernelContext& context, ConstMatrix from, Matrix to);
void ZeroRows(const KernelContext& context, Matrix rows);
void GatherRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out);
void ScatterRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out);
void EmbeddingLookup(const KernelContext& context, const StoredTable& table, StepSpan<int32_t> ids,
                     Matrix out);

}  // namespace perigee::kernels::cuda
