#include "kernels/elementwise_cuda.cuh"
#include "kernels/rows/rows_cuda.h"

namespace perigee::kernels::cuda {
namespace {

template <typename S, typename T>
struct CopyAt {
  View<const S> from;
  View<T> to;
  __device__ void operator()(int64_t r, int64_t c) const { Store(Load(from.Row(r) + c), to.Row(r) + c); }
};

template <typename T>
struct ZeroAt {
  View<T> rows;
  __device__ void operator()(int64_t r, int64_t c) const { Store(0.0f, rows.Row(r) + c); }
};

template <typename T>
struct GatherAt {
  View<const T> from;
  const int64_t* places;
  View<T> to;
  __device__ void operator()(int64_t r, int64_t c) const { to.Row(r)[c] = from.Row(places[r])[c]; }
};

template <typename T>
struct ScatterAt {
  View<const T> from;
  const int64_t* places;
  View<T> to;
  __device__ void operator()(int64_t r, int64_t c) const { to.Row(places[r])[c] = from.Row(r)[c]; }
};

template <typename S, typename T>
struct LookUpAt {
  const S* table;
  int64_t table_rows;
  const int32_t* ids;
  View<T> to;
  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t id = ids[r];
    if (id < 0 || id >= table_rows) return;  // a row without a token (padding of a decode batch)
    Store(Load(table + id * to.cols + c), to.Row(r) + c);
  }
};

template <typename S>
void LookUp(const KernelContext& context, const StoredTable& table, const int32_t* ids, Matrix out) {
  WithType(out.dtype, [&]<typename T>(T*) {
    ForElements(context, out.rows, out.cols,
                LookUpAt<S, T>{static_cast<const S*>(table.data), table.rows, ids, ViewOf<T>(out)});
  });
}

}  // namespace

void CopyRows(const KernelContext& context, ConstMatrix from, Matrix to) {
  WithType(from.dtype, [&]<typename S>(S*) {
    WithType(to.dtype, [&]<typename T>(T*) {
      ForElements(context, to.rows, to.cols, CopyAt<S, T>{ViewOf<S>(from), ViewOf<T>(to)});
    });
  });
}

void ZeroRows(const KernelContext& context, Matrix rows) {
  WithType(rows.dtype,
           [&]<typename T>(T*) { ForElements(context, rows.rows, rows.cols, ZeroAt<T>{ViewOf<T>(rows)}); });
}

void GatherRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out) {
  PERIGEE_CHECK(source.dtype == out.dtype);
  const int64_t* places = OnDevice(context, index);
  WithType(out.dtype, [&]<typename T>(T*) {
    ForElements(context, out.rows, out.cols, GatherAt<T>{ViewOf<T>(source), places, ViewOf<T>(out)});
  });
}

void ScatterRows(const KernelContext& context, ConstMatrix source, StepSpan<int64_t> index, Matrix out) {
  PERIGEE_CHECK(source.dtype == out.dtype);
  const int64_t* places = OnDevice(context, index);
  WithType(out.dtype, [&]<typename T>(T*) {
    ForElements(context, source.rows, out.cols, ScatterAt<T>{ViewOf<T>(source), places, ViewOf<T>(out)});
  });
}

void EmbeddingLookup(const KernelContext& context, const StoredTable& table, StepSpan<int32_t> ids,
                     Matrix out) {
  const int32_t* on_device = OnDevice(context, ids);
  switch (table.dtype) {
    case DType::kF32:
      return LookUp<float>(context, table, on_device, out);
    case DType::kF16:
      return LookUp<__half>(context, table, on_device, out);
    case DType::kBF16:
      return LookUp<__nv_bfloat16>(context, table, on_device, out);
  }
}

}  // namespace perigee::kernels::cuda
