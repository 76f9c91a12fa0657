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
template <int kMR, int kNP, bool kAccumulate, typename TB>
HWY_INLINE void RegisterTile(const float* HWY_RESTRICT a, int64_t a_stride, const PanelMatrix<TB> b,
                             int64_t depth, float* HWY_RESTRICT c, int64_t c_stride) {
  const TileShape::D d;
  constexpr int kNV = kNP * TileShape::kVecsPerPanel;
  constexpr int kVP = TileShape::kVecsPerPanel;
  hn::Vec<TileShape::D> acc[kMR][kNV];
#pragma GCC unroll 16
  for (int m = 0; m < kMR; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < kNV; ++n) {
      acc[m][n] = kAccumulate ? hn::LoadU(d, c + m * c_stride + n * TileShape::kLanes) : hn::Zero(d);
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
    for (int n = 0; n < kNV; ++n) hn::StoreU(acc[m][n], d, c + m * c_stride + n * TileShape::kLanes);
  }
}

// RegisterTile for the last panels, of which only `cols` columns exist in C.
template <int kMR, int kNP, bool kAccumulate, typename TB>
HWY_INLINE void EdgeTile(const float* a, int64_t a_stride, const PanelMatrix<TB> b, int64_t depth, float* c,
                         int64_t c_stride, int64_t cols) {
  constexpr int64_t kWidth = kNP * 16;
  if (cols >= kWidth) {
    RegisterTile<kMR, kNP, kAccumulate>(a, a_stride, b, depth, c, c_stride);
    return;
  }
  HWY_ALIGN float whole[kMR * kWidth] = {};
  for (int m = 0; kAccumulate && m < kMR; ++m) std::copy_n(c + m * c_stride, cols, whole + m * kWidth);
  RegisterTile<kMR, kNP, kAccumulate>(a, a_stride, b, depth, whole, kWidth);
  for (int m = 0; m < kMR; ++m) std::copy_n(whole + m * kWidth, cols, c + m * c_stride);
}

// The last `rows` < kMax rows of a block: finds the tile of exactly that height.
template <int kMax, int kNP, bool kAccumulate, typename TB>
HWY_INLINE void RemainderRows(int64_t rows, const float* a, int64_t a_stride, const PanelMatrix<TB> b,
                              int64_t depth, float* c, int64_t c_stride, int64_t cols) {
  if constexpr (kMax > 1) {
    if (rows == kMax - 1) {
      EdgeTile<kMax - 1, kNP, kAccumulate>(a, a_stride, b, depth, c, c_stride, cols);
    } else {
      RemainderRows<kMax - 1, kNP, kAccumulate>(rows, a, a_stride, b, depth, c, c_stride, cols);
    }
  }
}

template <int kNP, bool kAccumulate, typename TB>
HWY_INLINE void TileColumn(const float* a, int64_t a_stride, int64_t rows, const PanelMatrix<TB> b,
                           int64_t depth, float* c, int64_t c_stride, int64_t cols) {
  constexpr int kRows = TileShape::kRows;
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) {
    EdgeTile<kRows, kNP, kAccumulate>(a + m * a_stride, a_stride, b, depth, c + m * c_stride, c_stride, cols);
  }
  RemainderRows<kRows, kNP, kAccumulate>(rows - m, a + m * a_stride, a_stride, b, depth, c + m * c_stride,
                                         c_stride, cols);
}

// C [rows, cols] = (kAccumulate ? C : 0) + A [rows, depth] B. B is read in whole panels: the one that holds
// the last column must be readable (its further columns may hold anything finite).
template <bool kAccumulate, typename TB>
HWY_INLINE void MatMul(const float* a, int64_t a_stride, int64_t rows, PanelMatrix<TB> b, int64_t depth,
                       float* c, int64_t c_stride, int64_t cols) {
  constexpr int kWide = 4;  // a single row has accumulators to spare: more columns at once hide the latency
  int64_t n = 0;
  if (rows == 1) {
    for (; n + 16 * kWide <= cols; n += 16 * kWide, b.data += kWide * b.panel_stride) {
      RegisterTile<1, kWide, kAccumulate>(a, a_stride, b, depth, c + n, c_stride);
    }
  }
  constexpr int kNP = TileShape::kPanels;
  for (; n + 16 * (kNP - 1) < cols; n += 16 * kNP, b.data += kNP * b.panel_stride) {
    TileColumn<kNP, kAccumulate>(a, a_stride, rows, b, depth, c + n, c_stride, cols - n);
  }
  if constexpr (kNP > 1) {
    if (n < cols) TileColumn<1, kAccumulate>(a, a_stride, rows, b, depth, c + n, c_stride, cols - n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
