#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "tensor/dtype.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// out[i] = source[index[i]]. Indices in [0, source.rows); out [index.size(), cols].
void GatherRows(const KernelContext& context, ConstMatrixF source, std::span<const int64_t> index,
                MatrixF out);

// out[index[i]] = source[i]: the inverse of GatherRows for a permutation. out [out.rows, cols]; rows that no
// index names are left alone.
void ScatterRows(const KernelContext& context, ConstMatrixF source, std::span<const int64_t> index,
                 MatrixF out);

// A table as stored in the checkpoint: row-major [rows, cols] of `dtype`, not owned.
struct StoredTable {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
};

// out[i] = table[ids[i]] widened to float. Ids in [0, table.rows).
void EmbeddingLookup(const KernelContext& context, const StoredTable& table, std::span<const int32_t> ids,
                     MatrixF out);

}  // namespace perigee::kernels
