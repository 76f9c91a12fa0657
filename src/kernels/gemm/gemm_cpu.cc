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
constexpr int64_t kSmallProduct = int64_t{1} << 15;  // multiplications

// How a product is cut for the pool, in panels. One of few rows is cut finer only when there is enough of it
// to share.
int64_t PanelGroup(int64_t rows, int64_t out, int64_t in) {
  if (rows * in * out < kSmallProduct) return std::max<int64_t>(CeilDiv(out, PackedWeight::kPanel), 1);
  return kPanelGroup;
}

// Scratch of one panel of one task.
int64_t PanelScratch(int64_t rows, int64_t in, int64_t parts) {
  const int64_t levels = parts == 0 ? 0 : std::bit_width(static_cast<uint64_t>(parts));
  return (in + levels * std::min(rows, kRowBlock)) * 16;
}

// Cuts the product into blocks of rows and groups of panels that the pool works on independently.
void ForBlocks(const KernelContext& context, const PackedWeight& weight, int64_t rows, int64_t scratch_floats,
               const std::function<void(int64_t, int64_t, int64_t, int64_t, float*)>& body) {
  const int64_t row_blocks = CeilDiv(rows, kRowBlock);
  const int64_t group = PanelGroup(rows, weight.out(), weight.in());
  const int64_t groups = CeilDiv(weight.panels(), group);
  ForTasks(context, row_blocks * groups, scratch_floats * group, [&](int64_t task, float* scratch) {
    const int64_t row = (task % row_blocks) * kRowBlock;
    const int64_t panel = (task / row_blocks) * group;
    body(row, std::min(kRowBlock, rows - row), panel, std::min(panel + group, weight.panels()), scratch);
  });
}

}  // namespace

void Gemm(const KernelContext& context, ConstMatrixF x, const PackedWeight& weight, MatrixF y) {
  const int64_t scratch = PanelScratch(x.rows, weight.in(), 0);
  ForBlocks(context, weight, x.rows, scratch,
            [&](int64_t row, int64_t count, int64_t panel_begin, int64_t panel_end, float* wide) {
              HWY_DYNAMIC_DISPATCH(GemmBlock)
              (x.Rows(row, count), weight, panel_begin, panel_end, y.Rows(row, count), wide);
            });
}

void GemmInParts(const KernelContext& context, ConstMatrixF x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, MatrixF y) {
  const int64_t wide_floats = weight.in() * 16;
  const auto parts = static_cast<int64_t>(bounds.size()) - 1;
  ForBlocks(context, weight, x.rows, PanelScratch(x.rows, weight.in(), parts),
            [&](int64_t row, int64_t count, int64_t panel_begin, int64_t panel_end, float* scratch) {
              const int64_t width = panel_end - panel_begin;
              HWY_DYNAMIC_DISPATCH(GemmPartsBlock)
              (x.Rows(row, count), weight, bounds, panel_begin, panel_end, y.Rows(row, count), scratch,
               scratch + wide_floats * width);
            });
}

}  // namespace perigee::kernels::cpu

namespace perigee::kernels {

// Fewer rows may need more room: a small product is one task with all its panels.
void TallyGemm(WorkspaceTally& tally, int64_t rows, int64_t out, int64_t in, int64_t parts) {
  if (rows == 0 || out == 0 || in == 0) return;
  const int64_t panels = CeilDiv(out, PackedWeight::kPanel);
  const auto tally_rows = [&](int64_t count) {
    const int64_t group = cpu::PanelGroup(count, out, in);
    tally.Tasks(CeilDiv(count, cpu::kRowBlock) * CeilDiv(panels, group),
                cpu::PanelScratch(count, in, parts) * group);
  };
  tally_rows(rows);
  const int64_t small = std::min(rows, (cpu::kSmallProduct - 1) / (in * out));
  if (small > 0) tally_rows(small);
}

}  // namespace perigee::kernels
#endif  // HWY_ONCE
