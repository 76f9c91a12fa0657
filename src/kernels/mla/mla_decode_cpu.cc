#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla/mla_decode_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math.h"
#include "kernels/gemm/tile-inl.h"
#include "kernels/mla/mla_cpu.h"
#include "kernels/mla/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

// The records of `count` <= 64 keys from `key` on, as rows and with keys as lanes.
struct KeyBlock {
  const float* rows;  // [count, row_stride]
  int64_t row_stride;
  float* transposed;  // [record, 64], zero beyond count
};

HWY_INLINE void LoadKeys(const MlaDims& dims, const cpu::MlaSegment& segment, const PagedKvView& cache,
                         int64_t key, int64_t count, float* copies, KeyBlock& block) {
  block.rows = cache.Record(segment.block_table, key);  // a key block lies within one cache block
  block.row_stride = dims.record();
  for (int64_t j = 0; j < count; ++j) {
    const float* record = block.rows + j * dims.record();
    for (int64_t c = 0; c < dims.record(); ++c) block.transposed[c * cpu::kMlaKeyBlock + j] = record[c];
  }
  for (int64_t c = 0; count < cpu::kMlaKeyBlock && c < dims.record(); ++c) {
    std::fill_n(block.transposed + c * cpu::kMlaKeyBlock + count, cpu::kMlaKeyBlock - count, 0.0f);
  }
  if (dims.rank % 16 == 0) return;
  // The products below read whole panels of 16: the last one would reach beyond the last record of the pool.
  const int64_t stride = AlignUp<int64_t>(dims.rank, 16);
  for (int64_t j = 0; j < count; ++j)
    std::copy_n(block.rows + j * dims.record(), dims.rank, copies + j * stride);
  block.rows = copies;
  block.row_stride = stride;
}

void DecodeSplit(const MlaDims& dims, const float* absorbed_q, const cpu::MlaSegment& segment,
                 const PagedKvView& cache, int64_t visible, int64_t split, const cpu::MlaPartial& partial,
                 float* scratch) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.qk()));
  float* scores = scratch;
  float* copies = scores + dims.num_heads * cpu::kMlaKeyBlock;
  KeyBlock block{nullptr, 0, copies + cpu::kMlaKeyBlock * AlignUp<int64_t>(dims.rank, 16)};
  std::fill_n(partial.max, dims.num_heads, -std::numeric_limits<float>::infinity());
  std::fill_n(partial.sum, dims.num_heads, 0.0f);
  std::fill_n(partial.context, dims.num_heads * dims.rank, 0.0f);
  const int64_t end = std::min(visible, (split + 1) * cpu::kMlaSplit);
  for (int64_t key = split * cpu::kMlaSplit; key < end; key += cpu::kMlaKeyBlock) {
    const int64_t count = std::min(cpu::kMlaKeyBlock, end - key);
    LoadKeys(dims, segment, cache, key, count, copies, block);
    MatMul<false>(absorbed_q, dims.record(), dims.num_heads,
                  PanelMatrix<float>{block.transposed, 16, cpu::kMlaKeyBlock}, dims.record(), scores,
                  cpu::kMlaKeyBlock, cpu::kMlaKeyBlock);
    for (int64_t h = 0; h < dims.num_heads; ++h) {
      const float factor =
          SoftmaxBlock(scores + h * cpu::kMlaKeyBlock, count, scale, {partial.max + h, partial.sum + h});
      ScaleRow(partial.context + h * dims.rank, dims.rank, factor);
    }
    MatMul<true>(scores, cpu::kMlaKeyBlock, dims.num_heads,
                 PanelMatrix<float>{block.rows, 16, block.row_stride}, count, partial.context, dims.rank,
                 dims.rank);
  }
}

void Merge(const MlaDims& dims, std::span<const cpu::MlaPartial> partials, float* context) {
  for (int64_t h = 0; h < dims.num_heads; ++h) {
    float max = -std::numeric_limits<float>::infinity();
    for (const cpu::MlaPartial& p : partials) max = std::max(max, p.max[h]);
    float* to = context + h * dims.rank;
    std::fill_n(to, dims.rank, 0.0f);
    float sum = 0;
    for (const cpu::MlaPartial& p : partials) {
      const float factor = ExpOf(p.max[h] - max);
      sum += p.sum[h] * factor;
      AddScaledRow(p.context + h * dims.rank, factor, dims.rank, to);
    }
    ScaleRow(to, dims.rank, 1.0f / sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(DecodeSplit);
HWY_EXPORT(Merge);

int64_t MlaDecodeScratchFloats(const MlaDims& dims) {
  return kMlaKeyBlock * (dims.num_heads + AlignUp<int64_t>(dims.rank, 16) + dims.record());
}

void MlaDecodeSplit(const MlaDims& dims, const float* absorbed_q, const MlaSegment& segment,
                    const PagedKvView& cache, int64_t visible, int64_t split, const MlaPartial& partial,
                    float* scratch) {
  HWY_DYNAMIC_DISPATCH(DecodeSplit)(dims, absorbed_q, segment, cache, visible, split, partial, scratch);
}

void MlaMerge(const MlaDims& dims, std::span<const MlaPartial> partials, float* context) {
  HWY_DYNAMIC_DISPATCH(Merge)(dims, partials, context);
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
