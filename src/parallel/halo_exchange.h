#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/context.h"
#include "parallel/parallel_context.h"
#include "parallel/segment_plan.h"
#include "tensor/matrix.h"

namespace perigee::parallel {

struct HaloShape {
  int64_t history = 0;  // rows before a row that its convolution sees
  int64_t parts = 0;    // kinds of channels side by side in a row (queries, keys, values)
  int64_t width = 0;    // channels of a part, of all heads of the shard; every rank's share is as large
  int64_t state = 0;    // floats of a rank's share of a recurrent state
};

// What a rank's pool holds of a sequence: its share of the last pre-convolution rows, [history, parts *
// width / C], and of the recurrent state. Read where the span has a prefix.
struct EntryShare {
  const float* conv = nullptr;
  const float* state = nullptr;
};

// What segments need from before their first rows, from however many segments back, and from the pools of
// other ranks: moved by one all-gather in the CP group. The object refers to the step's workspace.
class HaloExchange {
 public:
  // Collective. rows: this rank's pre-convolution rows [local rows, parts * width]. entries: one a span. All
  // arguments but these two outlive the object.
  static StatusOr<HaloExchange> Run(const ParallelContext& parallel, const SegmentPlan& plan,
                                    const kernels::KernelContext& context, const HaloShape& shape,
                                    ConstMatrixF rows, std::span<const EntryShare> entries);

  // The `history` rows before row `row` of a span (relative to its first; the end of a piece, or 0), oldest
  // first, zero before the sequence's start: [history, parts * width].
  void TailBefore(int32_t span, int64_t row, float* out) const;
  // The same, this rank's share of the channels: [history, parts * width / C].
  void ShareOfTailBefore(int32_t span, int64_t row, float* out) const;
  // The whole state before a span's first row, by share: [C * state]. Zero where a sequence begins.
  void EntryState(int32_t span, float* out) const;

  // Floats that CP rank `rank` gives to each other rank.
  static int64_t SentBy(const SegmentPlan& plan, const HaloShape& shape, int rank);

 private:
  HaloExchange(const SegmentPlan& plan, const HaloShape& shape);

  int64_t ShareWidth() const { return shape_.width / ranks_; }
  // Channels [begin, begin + count) of a part of row `row` of a span; negative rows lie in the prefix.
  void CopyChannels(int32_t span, int64_t row, int64_t part, int64_t begin, int64_t count, float* out) const;
  // A row that was sent: null where it lies before the sequence's start or in the entry shares.
  const float* SentRow(int32_t span, int64_t row) const;
  // What a rank gave of a span's entry: conv rows, then the state.
  const float* Entry(int32_t span, int64_t rank) const;
  void Fill(ConstMatrixF rows, std::span<const EntryShare> entries, float* send) const;

  const SegmentPlan* plan_;
  HaloShape shape_;
  int64_t ranks_;
  std::vector<int64_t> counts_;        // floats of each rank
  std::vector<int64_t> piece_at_;      // by piece: where its last rows are in the gather
  std::vector<int64_t> entries_at_;    // by rank
  std::vector<int64_t> entry_number_;  // by span with a prefix; -1: it begins a sequence
  const float* gathered_ = nullptr;
};

}  // namespace perigee::parallel
