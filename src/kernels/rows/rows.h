#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tensor/dtype.h"
#include "tensor/matrix.h"
#include "tensor/step_span.h"

namespace perigee::kernels {

// to = from, [rows, cols]; types may differ on a device.
void CopyRows(const KernelContext& context, ConstMatrix from, Matrix to);
void ZeroRows(const KernelContext& context, Matrix rows);

// out[i] = source[index[i]]. Indices in [0, source.rows); out [index.size(), cols].
void GatherRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out);

// out[index[i]] = source[i]: the inverse of GatherRows for a permutation. out [out.rows, cols]; rows that no
// index names are left alone.
void ScatterRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out);

// A table as stored in the checkpoint: row-major [rows, cols] of `dtype`, not owned; on the context's device.
struct StoredTable {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
};

// out[i] = table[ids[i]] in out's type. Ids in [0, table.rows).
void EmbeddingLookup(const KernelContext& context, const StoredTable& table, StepSpan<int32_t> ids,
                     Matrix out);

}  // namespace perigee::kernels
