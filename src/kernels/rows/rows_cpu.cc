#include "kernels/rows/rows_cpu.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "kernels/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/rows_cpu.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

// The first min(n, lanes) 2-byte values at p; a mapped file promises no alignment, hence the copy.
template <typename T>
HWY_INLINE hn::Vec<hn::Rebind<T, D>> LoadHalves(const std::byte* p, size_t n) {
  HWY_ALIGN T lanes[kVecLanes] = {};
  std::memcpy(lanes, p, sizeof(T) * HWY_MIN(n, kVecLanes));
  return hn::Load(hn::Rebind<T, D>(), lanes);
}

void WidenBf16(const std::byte* from, float* to, size_t n) {
  for (size_t i = 0; i < n; i += kVecLanes) {
    StoreUpTo(hn::PromoteTo(D(), LoadHalves<hwy::bfloat16_t>(from + 2 * i, n - i)), to + i, n - i);
  }
}

void WidenF16(const std::byte* from, float* to, size_t n) {
  const D d;
  const hn::Rebind<uint32_t, D> du;
  const auto exponent = hn::Set(du, 0x7c00u);
  for (size_t i = 0; i < n; i += kVecLanes) {
    const V finite = hn::PromoteTo(d, LoadHalves<hwy::float16_t>(from + 2 * i, n - i));
    // Highway's emulation takes infinity and NaN for numbers: give them the float's exponent.
    const auto bits = hn::PromoteTo(du, LoadHalves<uint16_t>(from + 2 * i, n - i));
    const auto special = hn::Eq(hn::And(bits, exponent), exponent);
    const auto widened = hn::Or(hn::BitCast(du, finite), hn::Set(du, 0x7f800000u));
    StoreUpTo(hn::IfThenElse(hn::RebindMask(d, special), hn::BitCast(d, widened), finite), to + i, n - i);
  }
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {
namespace {
HWY_EXPORT(WidenBf16);
HWY_EXPORT(WidenF16);

void WidenRow(DType dtype, const std::byte* from, float* to, size_t n) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, n * sizeof(float));
      return;
    case DType::kF16:
      HWY_DYNAMIC_DISPATCH(WidenF16)(from, to, n);
      return;
    case DType::kBF16:
      HWY_DYNAMIC_DISPATCH(WidenBf16)(from, to, n);
      return;
  }
}
}  // namespace

void CopyRows(const KernelContext& context, ConstMatrixF from, MatrixF to) {
  ParallelRows(context, to.rows, to.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) std::copy_n(from.Row(r), to.cols, to.Row(r));
  });
}

void ZeroRows(const KernelContext& context, MatrixF rows) {
  ParallelRows(context, rows.rows, rows.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) std::fill_n(rows.Row(r), rows.cols, 0.0f);
  });
}

void GatherRows(const KernelContext& context, ConstMatrixF source, std::span<const int64_t> index,
                MatrixF out) {
  ParallelRows(context, out.rows, out.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index[static_cast<size_t>(i)];
      PERIGEE_CHECK(row >= 0 && row < source.rows);
      std::memcpy(out.Row(i), source.Row(row), static_cast<size_t>(out.cols) * sizeof(float));
    }
  });
}

void ScatterRows(const KernelContext& context, ConstMatrixF source, std::span<const int64_t> index,
                 MatrixF out) {
  ParallelRows(context, source.rows, out.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index[static_cast<size_t>(i)];
      PERIGEE_CHECK(row >= 0 && row < out.rows);
      std::memcpy(out.Row(row), source.Row(i), static_cast<size_t>(out.cols) * sizeof(float));
    }
  });
}

void EmbeddingLookup(const KernelContext& context, const StoredTable& table, std::span<const int32_t> ids,
                     MatrixF out) {
  const auto* data = static_cast<const std::byte*>(table.data);
  const int64_t row_bytes = table.cols * DTypeBytes(table.dtype);
  ParallelRows(context, out.rows, out.cols, kLightGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t id = ids[static_cast<size_t>(i)];
      PERIGEE_CHECK(id >= 0 && id < table.rows);
      WidenRow(table.dtype, data + id * row_bytes, out.Row(i), static_cast<size_t>(out.cols));
    }
  });
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
