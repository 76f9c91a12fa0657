#include "parallel/step_layout.h"

#include "base/check.h"

namespace perigee::parallel {

StepLayout MakeStepLayout(StepMode mode, const batch::ForwardBatch& batch, CpStrategy strategy,
                          const ParallelContext& parallel) {
  StepLayout layout;
  layout.mode = mode;
  PERIGEE_CHECK_MSG(batch.snapshots.empty() || (mode == StepMode::kState && parallel.attn_cp > 1),
                    "only the state mode cuts spans");
  const bool sharded = mode == StepMode::kHead || mode == StepMode::kState || mode == StepMode::kReplicated;
  if (!sharded || parallel.attn_cp == 1) {
    layout.rows = RowPartition::Whole(batch.NumRows());
    layout.local_spans = batch.spans;
    return layout;
  }
  const CpPlan plan = strategy(batch.spans, parallel.attn_cp);
  layout.rows = RowPartition::FromPlan(batch.spans, plan, parallel.cp_rank);
  if (mode == StepMode::kState) {
    layout.segments = MakeSegmentPlan(batch.spans, plan, batch.snapshots, parallel.cp_rank);
  }
  int64_t row = 0;
  for (const Segment& s : plan.ranks[static_cast<size_t>(parallel.cp_rank)]) {
    const batch::SeqSpan& span = batch.spans[static_cast<size_t>(s.span)];
    layout.local_spans.push_back(
        {.seq = span.seq, .q_begin = row, .q_len = s.len, .kv_len = span.prefix() + s.begin + s.len});
    row += s.len;
  }
  return layout;
}

std::vector<batch::SeqSpan> SelectSpans(std::span<const batch::SeqSpan> spans,
                                        std::span<const int64_t> places) {
  std::vector<batch::SeqSpan> selected;
  size_t next = 0;
  for (const batch::SeqSpan& span : spans) {
    int64_t expected = -1;
    for (; next < places.size() && places[next] < span.q_begin + span.q_len; ++next) {
      const int64_t place = places[next];
      PERIGEE_CHECK(place >= span.q_begin);
      const int64_t visible = span.prefix() + (place - span.q_begin) + 1;
      if (place == expected) {
        ++selected.back().q_len;
        selected.back().kv_len = visible;
      } else {
        selected.push_back(
            {.seq = span.seq, .q_begin = static_cast<int64_t>(next), .q_len = 1, .kv_len = visible});
      }
      expected = place + 1;
    }
  }
  PERIGEE_CHECK(next == places.size());
  return selected;
}

}  // namespace perigee::parallel
