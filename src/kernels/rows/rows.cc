#include "kernels/rows/rows.h"

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/rows/rows_cpu.h"
#include "kernels/rows/rows_cuda.h"

namespace perigee::kernels {

void CopyRows(const KernelContext& context, ConstMatrix from, Matrix to) {
  PERIGEE_CHECK(from.rows == to.rows && from.cols == to.cols);
  PERIGEE_DISPATCH(context, cpu::CopyRows(context, from.As<float>(), to.As<float>()),
                   cuda::CopyRows(context, from, to));
}

void ZeroRows(const KernelContext& context, Matrix rows) {
  PERIGEE_DISPATCH(context, cpu::ZeroRows(context, rows.As<float>()), cuda::ZeroRows(context, rows));
}

void GatherRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out) {
  PERIGEE_CHECK(out.rows == index.size() && out.cols == source.cols);
  PERIGEE_DISPATCH(context, cpu::GatherRows(context, source.As<float>(), index.host, out.As<float>()),
                   cuda::GatherRows(context, source, index, out));
}

void ScatterRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out) {
  PERIGEE_CHECK(source.rows == index.size() && out.cols == source.cols);
  PERIGEE_DISPATCH(context, cpu::ScatterRows(context, source.As<float>(), index.host, out.As<float>()),
                   cuda::ScatterRows(context, source, index, out));
}

void EmbeddingLookup(const KernelContext& context, const StoredTable& table, StepSpan<int32_t> ids,
                     Matrix out) {
  PERIGEE_CHECK(out.rows == ids.size() && out.cols == table.cols);
  PERIGEE_DISPATCH(context, cpu::EmbeddingLookup(context, table, ids.host, out.As<float>()),
                   cuda::EmbeddingLookup(context, table, ids, out));
}

}  // namespace perigee::kernels
