#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla/mla_prefill_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/gemm/tile-inl.h"
#include "kernels/mla/mla_cpu.h"
#include "kernels/mla/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

void PrefillBlock(const MlaDims& dims, const ConstMatrixF& q, const cpu::MlaSegment& segment,
                  const cpu::ExpandedKeys& piece, int64_t head, int64_t row, int64_t rows,
                  const cpu::MlaRunning& running, const MatrixF& out, float* scores) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.qk()));
  const int64_t prefix = segment.kv_len - segment.q_len;
  const int64_t first_row = segment.q_begin + row;
  const float* query = q.Row(first_row) + head * dims.qk();
  float* result = out.Row(first_row) + head * dims.value;
  const int64_t panel_floats = dims.qk() * 16;
  const float* head_keys = piece.keys + head * CeilDiv<int64_t>(piece.count, 16) * panel_floats;
  const int64_t last_visible = prefix + row + rows;  // keys seen by the block's last row
  for (int64_t begin = 0; begin < piece.count; begin += cpu::kMlaKeyBlock) {
    const int64_t key = piece.first_key + begin;
    if (key >= last_visible) break;
    const int64_t count = std::min(cpu::kMlaKeyBlock, piece.count - begin);
    const PanelMatrix<float> keys{head_keys + begin / 16 * panel_floats, panel_floats, 16};
    MatMul<false>(query, q.stride, rows, keys, dims.qk(), scores, cpu::kMlaKeyBlock,
                  AlignUp<int64_t>(count, 16));
    for (int64_t r = 0; r < rows; ++r) {
      float* row_scores = scores + r * cpu::kMlaKeyBlock;
      const int64_t visible = std::min(prefix + row + r + 1 - key, count);
      if (visible <= 0) {
        std::fill_n(row_scores, cpu::kMlaKeyBlock, 0.0f);
        continue;
      }
      const int64_t state = (first_row + r) * dims.num_heads + head;
      const float factor =
          SoftmaxBlock(row_scores, visible, scale, {running.max + state, running.sum + state});
      ScaleRow(result + r * out.stride, dims.value, factor);
    }
    const PanelMatrix<float> values{
        piece.values + begin * piece.value_stride + head * (dims.nope + dims.value) + dims.nope, 16,
        piece.value_stride};
    MatMul<true>(scores, cpu::kMlaKeyBlock, rows, values, count, result, out.stride, dims.value);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(PrefillBlock);

int64_t MlaPrefillScratchFloats() {
  return kMlaQueryBlock * kMlaKeyBlock;
}

void MlaPrefillBlock(const MlaDims& dims, ConstMatrixF q, const MlaSegment& segment,
                     const ExpandedKeys& piece, int64_t head, int64_t row, int64_t rows,
                     const MlaRunning& running, MatrixF out, float* scratch) {
  HWY_DYNAMIC_DISPATCH(PrefillBlock)(dims, q, segment, piece, head, row, rows, running, out, scratch);
}

void MlaPackKeys(const MlaDims& dims, const float* expanded, int64_t expanded_stride,
                 const MlaSegment& segment, const PagedKvView& cache, int64_t first_key, int64_t count,
                 int64_t panel, int64_t head, float* keys) {
  float* to = keys + (head * CeilDiv<int64_t>(count, 16) + panel) * dims.qk() * 16;
  for (int64_t j = 0; j < 16; ++j) {
    const int64_t key = panel * 16 + j;
    if (key >= count) {
      for (int64_t c = 0; c < dims.qk(); ++c) to[c * 16 + j] = 0;
      continue;
    }
    const float* nope = expanded + key * expanded_stride + head * (dims.nope + dims.value);
    const float* rope = cache.Record(segment.block_table, first_key + key) + dims.rank;
    for (int64_t c = 0; c < dims.nope; ++c) to[c * 16 + j] = nope[c];
    for (int64_t c = 0; c < dims.rope; ++c) to[(dims.nope + c) * 16 + j] = rope[c];
  }
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
