#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_prefill_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/kda/kda_chunk-inl.h"
#include "kernels/kda/kda_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

void PrefillHead(const cpu::KdaArgs& a, const cpu::KdaSegment& segment, int64_t head, float* scratch) {
  Chunk c(scratch, a.key_dim, a.value_dim);
  float* stored = segment.state + head * a.key_dim * a.value_dim;
  for (int64_t ch = 0; ch < a.key_dim; ++ch) {
    CopyPadded(stored + ch * a.value_dim, a.value_dim, c.state + ch * c.width);
  }
  for (int64_t begin = 0; begin < segment.q_len; begin += kKdaChunk) {
    const int64_t row = segment.q_begin + begin;
    const int64_t rows = std::min(kKdaChunk, segment.q_len - begin);
    Pairs<true>(a, row, rows, head, c);
    Solve(a, row, rows, head, 0, c);
    Output(a, row, rows, head, c);
    AdvanceState(rows, c);
  }
  for (int64_t ch = 0; ch < a.key_dim; ++ch) {
    std::copy_n(c.state + ch * c.width, a.value_dim, stored + ch * a.value_dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(PrefillHead);

int64_t KdaChunkScratchFloats(int64_t key_dim, int64_t value_dim) {
  const int64_t keys = AlignUp<int64_t>(key_dim, 16);
  const int64_t values = AlignUp<int64_t>(value_dim, 16);
  return keys * values + key_dim * kKdaChunk + 2 * kKdaChunk * kKdaChunk + 5 * kKdaChunk * keys +
         2 * kKdaChunk * values + keys;
}

void KdaPrefillHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch) {
  HWY_DYNAMIC_DISPATCH(PrefillHead)(args, segment, head, scratch);
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
