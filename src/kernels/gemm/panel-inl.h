// Reading packed weights and adding tiles: shared by the dense and the expert products. Included once per
// target.
#if defined(PERIGEE_KERNELS_GEMM_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PERIGEE_KERNELS_GEMM_PANEL_INL_H_
#undef PERIGEE_KERNELS_GEMM_PANEL_INL_H_
#else
#define PERIGEE_KERNELS_GEMM_PANEL_INL_H_
#endif

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

// BF16 panels used by at least this many rows are widened once instead of at every use.
constexpr int64_t kWidenRows = 2 * TileShape::kRows;

// target[i] += source[i].
HWY_INLINE void AddTile(const float* HWY_RESTRICT source, float* HWY_RESTRICT target, int64_t count) {
  const TileShape::D d;
  for (int64_t i = 0; i < count; i += TileShape::kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, target + i), hn::LoadU(d, source + i)), d, target + i);
  }
}

// Calls body with panels [begin, end) of w, inputs [in_begin, in_begin + in_count), as a PanelMatrix. `wide`
// has room for (end - begin) * in_count * 16 floats.
template <class Body>
HWY_INLINE void WithPanels(const PackedWeight& w, int64_t begin, int64_t end, int64_t in_begin,
                           int64_t in_count, int64_t rows, float* wide, const Body& body) {
  const int64_t stride = w.in() * PackedWeight::kPanel;
  const int64_t offset = in_begin * PackedWeight::kPanel;
  if (!w.is_bf16()) {
    body(PanelMatrix<float>{w.F32Panel(begin) + offset, stride, PackedWeight::kPanel});
    return;
  }
  if (rows < kWidenRows) {
    body(PanelMatrix<uint16_t>{w.Bf16Panel(begin) + offset, stride, PackedWeight::kPanel});
    return;
  }
  const TileShape::D d;
  const int64_t count = in_count * PackedWeight::kPanel;
  for (int64_t p = begin; p < end; ++p) {
    const uint16_t* from = w.Bf16Panel(p) + offset;
    float* to = wide + (p - begin) * count;
    for (int64_t i = 0; i < count; i += TileShape::kLanes) hn::StoreU(LoadB(d, from + i), d, to + i);
  }
  body(PanelMatrix<float>{wide, count, PackedWeight::kPanel});
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
