#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_summary_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "kernels/kda/kda_chunk-inl.h"
#include "kernels/kda/kda_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

// M and B stand side by side in one state, M's columns first, so that a chunk's pairs are worked out once.
void SummaryHead(const KdaSummaryArgs& s, const KdaSummarySegment& segment, int64_t head, float* scratch) {
  const cpu::KdaArgs a{.num_heads = s.num_heads,
                       .key_dim = s.key_dim,
                       .value_dim = s.value_dim,
                       .q = {},
                       .k = s.k,
                       .v = s.v,
                       .g = s.g,
                       .beta = s.beta,
                       .out = {}};
  const int64_t value_begin = AlignUp<int64_t>(s.key_dim, 16);
  Chunk c(scratch, s.key_dim, value_begin + s.value_dim);
  std::fill_n(c.state, s.key_dim * c.width, 0.0f);
  for (int64_t ch = 0; ch < s.key_dim; ++ch) c.state[ch * c.width + ch] = 1.0f;
  for (int64_t begin = 0; begin < segment.q_len; begin += kKdaChunk) {
    const int64_t row = segment.q_begin + begin;
    const int64_t rows = std::min(kKdaChunk, segment.q_len - begin);
    Pairs<false>(a, row, rows, head, c);
    Solve(a, row, rows, head, value_begin, c);
    AdvanceState(rows, c);
  }
  float* transition = segment.transition + head * s.key_dim * s.key_dim;
  float* state = segment.state + head * s.key_dim * s.value_dim;
  for (int64_t ch = 0; ch < s.key_dim; ++ch) {
    const float* from = c.state + ch * c.width;
    std::copy_n(from, s.key_dim, transition + ch * s.key_dim);
    std::copy_n(from + value_begin, s.value_dim, state + ch * s.value_dim);
  }
}

// A head of one chain.
class HeadFold {
 public:
  HeadFold(const KdaFoldArgs& args, const KdaFoldChain& chain, int64_t head, float* scratch)
      : chain_(chain),
        head_(head),
        keys_(args.key_dim),
        values_(args.value_dim),
        width_(AlignUp<int64_t>(args.value_dim, 16)),
        state_(scratch),
        next_(scratch + keys_ * width_) {}

  void Run() {
    for (const KdaFoldOutput& out : chain_.outputs) {
      if (head_ < out.head_begin || head_ >= out.head_end) continue;
      AdvanceTo(out.steps);
      float* to = out.state + (head_ - out.head_begin) * keys_ * values_;
      for (int64_t ch = 0; ch < keys_; ++ch) std::copy_n(state_ + ch * width_, values_, to + ch * values_);
    }
  }

 private:
  const KdaFoldStep& Step(int64_t i) const { return chain_.steps[static_cast<size_t>(i)]; }
  const float* Transition(int64_t i) const {
    return Step(i).transition == nullptr ? nullptr : Step(i).transition + head_ * keys_ * keys_;
  }

  // Whether nothing that came before step i reaches beyond it.
  bool StartsAnew(int64_t i) const {
    const float* m = Transition(i);
    return m == nullptr || std::all_of(m, m + keys_ * keys_, [](float x) { return x == 0.0f; });
  }

  void LoadB(int64_t i, float* to) const {
    const float* b = Step(i).state + head_ * keys_ * values_;
    for (int64_t ch = 0; ch < keys_; ++ch) CopyPadded(b + ch * values_, values_, to + ch * width_);
  }

  void AdvanceTo(int64_t steps) {
    int64_t first = steps;  // the last step before `steps` that starts anew, or as far as we are
    while (first > done_ && !StartsAnew(first - 1)) --first;
    if (first > done_) {
      LoadB(first - 1, state_);
      done_ = first;
    }
    for (; done_ < steps; ++done_) {
      LoadB(done_, next_);
      MatMul<true>(Transition(done_), keys_, keys_, PanelMatrix<float>{state_, 16, width_}, keys_, next_,
                   width_, width_);
      std::swap(state_, next_);
    }
  }

  const KdaFoldChain& chain_;
  const int64_t head_, keys_, values_, width_;
  float* state_;  // after `done_` steps [keys, width]
  float* next_;
  int64_t done_ = 0;
};

void FoldHead(const KdaFoldArgs& args, const KdaFoldChain& chain, int64_t head, float* scratch) {
  HeadFold(args, chain, head, scratch).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(SummaryHead);
HWY_EXPORT(FoldHead);

int64_t KdaSummaryScratchFloats(int64_t key_dim, int64_t value_dim) {
  return KdaChunkScratchFloats(key_dim, AlignUp<int64_t>(key_dim, 16) + value_dim);
}

int64_t KdaFoldScratchFloats(int64_t key_dim, int64_t value_dim) {
  return 2 * key_dim * AlignUp<int64_t>(value_dim, 16);
}

void KdaSummaryHead(const KdaSummaryArgs& args, const KdaSummarySegment& segment, int64_t head,
                    float* scratch) {
  HWY_DYNAMIC_DISPATCH(SummaryHead)(args, segment, head, scratch);
}

void KdaFoldHead(const KdaFoldArgs& args, const KdaFoldChain& chain, int64_t head, float* scratch) {
  HWY_DYNAMIC_DISPATCH(FoldHead)(args, chain, head, scratch);
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
