#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "base/math.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/gemm/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

// Columns [16 panel_begin, ...) of one block of rows, chain over all inputs.
void GemmBlock(const ConstMatrixF& x, const PackedWeight& w, int64_t panel_begin, int64_t panel_end,
               const MatrixF& y, float* wide) {
  const int64_t cols = std::min(panel_end * 16, w.out()) - panel_begin * 16;
  WithPanels(w, panel_begin, panel_end, 0, w.in(), x.rows, wide, [&](const auto& b) {
    MatMul<false>(x.data, x.stride, x.rows, b, w.in(), y.data + panel_begin * 16, y.stride, cols);
  });
}

// The same in parts: each part into its own tile, tiles merged as soon as their neighbour is there (a binary
// counter).
void GemmPartsBlock(const ConstMatrixF& x, const PackedWeight& w, std::span<const int64_t> bounds,
                    int64_t panel_begin, int64_t panel_end, const MatrixF& y, float* wide, float* tiles) {
  const int64_t cols = std::min(panel_end * 16, w.out()) - panel_begin * 16;
  const int64_t width = (panel_end - panel_begin) * 16;
  const int64_t tile_size = x.rows * width;
  const int64_t parts = static_cast<int64_t>(bounds.size()) - 1;
  int depth = 0;
  for (int64_t p = 0; p < parts; ++p) {
    float* tile = tiles + depth * tile_size;
    const int64_t from = bounds[static_cast<size_t>(p)];
    const int64_t count = bounds[static_cast<size_t>(p) + 1] - from;
    WithPanels(w, panel_begin, panel_end, from, count, x.rows, wide, [&](const auto& b) {
      MatMul<false>(x.data + from - bounds[0], x.stride, x.rows, b, count, tile, width, width);
    });
    ++depth;
    for (int64_t merges = std::countr_one(static_cast<uint64_t>(p)); merges > 0; --merges) {
      --depth;
      AddTile(tiles + depth * tile_size, tiles + (depth - 1) * tile_size, tile_size);
    }
  }
  for (int64_t r = 0; r < x.rows; ++r) std::copy_n(tiles + r * width, cols, y.Row(r) + panel_begin * 16);
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {
namespace {

HWY_EXPORT(GemmBlock);
HWY_EXPORT(GemmPartsBlock);

constexpr int64_t kRowBlock = 96;
constexpr int64_t kPanelGroup = 4;

// Cuts the product into blocks of rows and groups of panels that the pool works on independently.
void ForBlocks(const KernelContext& context, const PackedWeight& weight, int64_t rows, int64_t scratch_floats,
               const std::function<void(int64_t, int64_t, int64_t, int64_t, float*)>& body) {
  const int64_t row_blocks = CeilDiv(rows, kRowBlock);
  int64_t group = kPanelGroup;
  // A product of few rows is cut finer only when there is enough of it to share.
  if (rows * weight.in() * weight.out() < (int64_t{1} << 15)) group = std::max<int64_t>(weight.panels(), 1);
  const int64_t groups = CeilDiv(weight.panels(), group);
  ForTasks(context, row_blocks * groups, scratch_floats * group, [&](int64_t task, float* scratch) {
    const int64_t row = (task % row_blocks) * kRowBlock;
    const int64_t panel = (task / row_blocks) * group;
    body(row, std::min(kRowBlock, rows - row), panel, std::min(panel + group, weight.panels()), scratch);
  });
}

}  // namespace

void Gemm(const KernelContext& context, ConstMatrixF x, const PackedWeight& weight, MatrixF y) {
  const int64_t scratch = weight.in() * 16;
  ForBlocks(context, weight, x.rows, scratch,
            [&](int64_t row, int64_t count, int64_t panel_begin, int64_t panel_end, float* wide) {
              HWY_DYNAMIC_DISPATCH(GemmBlock)
              (x.Rows(row, count), weight, panel_begin, panel_end, y.Rows(row, count), wide);
            });
}

void GemmInParts(const KernelContext& context, ConstMatrixF x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, MatrixF y) {
  const int64_t levels = std::bit_width(bounds.size() - 1);
  const int64_t wide_floats = weight.in() * 16;
  const int64_t tile_floats = levels * std::min(x.rows, kRowBlock) * 16;
  ForBlocks(context, weight, x.rows, wide_floats + tile_floats,
            [&](int64_t row, int64_t count, int64_t panel_begin, int64_t panel_end, float* scratch) {
              const int64_t width = panel_end - panel_begin;
              HWY_DYNAMIC_DISPATCH(GemmPartsBlock)
              (x.Rows(row, count), weight, bounds, panel_begin, panel_end, y.Rows(row, count), scratch,
               scratch + wide_floats * width);
            });
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
