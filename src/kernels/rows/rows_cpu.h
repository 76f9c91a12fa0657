#pragma once

#include <span>
#include "kernels/context.h"
#include "kernels/rows/rows.h"
#include "tensor/matrix.h"

// The CPU's forms of rows.h, arguments checked. Used by rows.cc only.
namespace perigee::kernels::cpu {

void CopyRows(const KernelContext& context, ConstMatrixF from, MatrixF to);
void ZeroRows(const KernelContext& context, MatrixF rows);
void GatherRows(const KernelContext& context, ConstMatrixF source, std::span<const int64_t> index,
                MatrixF out);
void ScatterRows(const KernelContext& context, ConstMatrixF source, std::span<const int64_t> index,
                 MatrixF out);
void EmbeddingLookup(const KernelContext& context, const StoredTable& table, std::span<const int32_t> ids,
                     MatrixF out);

}  // namespace perigee::kernels::cpu
