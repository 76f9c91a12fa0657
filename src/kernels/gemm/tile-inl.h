// The register tile that every matrix product of the CPU backend is made of. Included once per Highway
// target.
#if defined(PERIGEE_KERNELS_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PERIGEE_KERNELS_GEMM_TILE_INL_H_
#undef PERIGEE_KERNELS_GEMM_TILE_INL_H_
#else
#define PERIGEE_KERNELS_GEMM_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// B of a product C = A B: rows of 16-wide panels. Element (k, 16 p + j) is data[p * panel_stride + k *
// row_stride + j].
template <typename T>
struct PanelMatrix {
  const T* data;
  int64_t panel_stride;
  int64_t row_stride;
};

// Where the rows of C lie: evenly spaced, or by index (rows of a batch that belong together but are not
// neighbours).
struct StridedRows {
  float* data;
  int64_t stride;
  float* Row(int64_t r) const { return data + r * stride; }
  StridedRows From(int64_t row, int64_t col) const { return {data + row * stride + col, stride}; }
};
struct IndexedRows {
  float* data;
  int64_t stride;
  const int32_t* index;
  float* Row(int64_t r) const { return data + index[r] * stride; }
  IndexedRows From(int64_t row, int64_t col) const { return {data + col, stride, index + row}; }
};

struct TileShape {
  using D = hn::CappedTag<float, 16>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kVecsPerPanel = 16 / kLanes;
  // Rows and panels of the main tile, chosen so that the accumulators, one row of B and a broadcast fit the
  // registers: 32 of them with AVX-512, 16 else.
  static constexpr int kPanels = kLanes == 16 ? 2 : 1;
  static constexpr int kRows = kLanes == 16 ? 12 : (kLanes == 8 ? 6 : 2);
};

template <class D>
HWY_INLINE hn::Vec<D> LoadB(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadB(D d, const uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
}

// One register tile: C[m, 0..16 kNP) = (kAccumulate ? C : 0) + sum over ascending k of A[m, k] B[k, .].
// Every element is one chain of multiply-adds, whatever kMR and kNP.
template <int kMR, int kNP, bool kAccumulate, typename TB, typename TC>
HWY_INLINE void RegisterTile(const float* HWY_RESTRICT a, int64_t a_stride, const PanelMatrix<TB> b,
                             int64_t depth, const TC c) {
  const TileShape::D d;
  constexpr int kNV = kNP * TileShape::kVecsPerPanel;
  constexpr int kVP = TileShape::kVecsPerPanel;
  hn::Vec<TileShape::D> acc[kMR][kNV];
#pragma GCC unroll 16
  for (int m = 0; m < kMR; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < kNV; ++n) {
      acc[m][n] = kAccumulate ? hn::LoadU(d, c.Row(m) + n * TileShape::kLanes) : hn::Zero(d);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<TileShape::D> row[kNV];
#pragma GCC unroll 16
    for (int n = 0; n < kNV; ++n) {
      row[n] =
          LoadB(d, b.data + (n / kVP) * b.panel_stride + k * b.row_stride + (n % kVP) * TileShape::kLanes);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kMR; ++m) {
      const auto x = hn::Set(d, a[m * a_stride + k]);
#pragma GCC unroll 16
      for (int n = 0; n < kNV; ++n) acc[m][n] = hn::MulAdd(x, row[n], acc[m][n]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kMR; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < kNV; ++n) hn::StoreU(acc[m][n], d, c.Row(m) + n * TileShape::kLanes);
  }
}

// RegisterTile for the last panels, of which only `cols` columns exist in C.
template <int kMR, int kNP, bool kAccumulate, typename TB, typename TC>
HWY_INLINE void EdgeTile(const float* a, int64_t a_stride, const PanelMatrix<TB> b, int64_t depth, const TC c,
                         int64_t cols) {
  constexpr int64_t kWidth = kNP * 16;
  if (cols >= kWidth) {
    RegisterTile<kMR, kNP, kAccumulate>(a, a_stride, b, depth, c);
    return;
  }
  HWY_ALIGN float whole[kMR * kWidth] = {};
  for (int m = 0; kAccumulate && m < kMR; ++m) std::copy_n(c.Row(m), cols, whole + m * kWidth);
  RegisterTile<kMR, kNP, kAccumulate>(a, a_stride, b, depth, StridedRows{whole, kWidth});
  for (int m = 0; m < kMR; ++m) std::copy_n(whole + m * kWidth, cols, c.Row(m));
}

// The last `rows` < kMax rows of a block: finds the tile of exactly that height.
template <int kMax, int kNP, bool kAccumulate, typename TB, typename TC>
HWY_INLINE void RemainderRows(int64_t rows, const float* a, int64_t a_stride, const PanelMatrix<TB> b,
                              int64_t depth, const TC c, int64_t cols) {
  if constexpr (kMax > 1) {
    if (rows == kMax - 1) {
      EdgeTile<kMax - 1, kNP, kAccumulate>(a, a_stride, b, depth, c, cols);
    } else {
      RemainderRows<kMax - 1, kNP, kAccumulate>(rows, a, a_stride, b, depth, c, cols);
    }
  }
}

template <int kNP, bool kAccumulate, typename TB, typename TC>
HWY_INLINE void TileColumn(const float* a, int64_t a_stride, int64_t rows, const PanelMatrix<TB> b,
                           int64_t depth, const TC c, int64_t cols) {
  constexpr int kRows = TileShape::kRows;
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) {
    EdgeTile<kRows, kNP, kAccumulate>(a + m * a_stride, a_stride, b, depth, c.From(m, 0), cols);
  }
  RemainderRows<kRows, kNP, kAccumulate>(rows - m, a + m * a_stride, a_stride, b, depth, c.From(m, 0), cols);
}

// C [rows, cols] = (kAccumulate ? C : 0) + A [rows, depth] B. B is read in whole panels: the one that holds
// the last column must be readable; what stands beyond that column is computed and thrown away.
template <bool kAccumulate, typename TB, typename TC>
HWY_NOINLINE void MatMul(const float* a, int64_t a_stride, int64_t rows, PanelMatrix<TB> b, int64_t depth,
                         const TC c, int64_t cols) {
  constexpr int kWide = 4;  // a single row has accumulators to spare: more columns at once hide the latency
  int64_t n = 0;
  if (rows == 1) {
    for (; n + 16 * kWide <= cols; n += 16 * kWide, b.data += kWide * b.panel_stride) {
      RegisterTile<1, kWide, kAccumulate>(a, a_stride, b, depth, c.From(0, n));
    }
  }
  constexpr int kNP = TileShape::kPanels;
  for (; n + 16 * (kNP - 1) < cols; n += 16 * kNP, b.data += kNP * b.panel_stride) {
    TileColumn<kNP, kAccumulate>(a, a_stride, rows, b, depth, c.From(0, n), cols - n);
  }
  if constexpr (kNP > 1) {
    if (n < cols) TileColumn<1, kAccumulate>(a, a_stride, rows, b, depth, c.From(0, n), cols - n);
  }
}

// The usual case: rows of C evenly spaced.
template <bool kAccumulate, typename TB>
HWY_INLINE void MatMul(const float* a, int64_t a_stride, int64_t rows, PanelMatrix<TB> b, int64_t depth,
                       float* c, int64_t c_stride, int64_t cols) {
  MatMul<kAccumulate>(a, a_stride, rows, b, depth, StridedRows{c, c_stride}, cols);
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
