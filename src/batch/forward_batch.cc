#include "batch/forward_batch.h"

#include "base/check.h"

namespace perigee::batch {
namespace {

void CheckSpan(const PlannedSpan& span, Phase phase) {
  PERIGEE_CHECK(!span.tokens.empty());
  PERIGEE_CHECK_MSG(phase == Phase::kPrefill || span.tokens.size() == 1, "a decode span has one row");
  PERIGEE_CHECK(span.prefix >= 0 && span.state_slot >= 0);
  PERIGEE_CHECK_MSG(span.fresh_state == (span.prefix == 0), "a state is fresh exactly at the first token");
  PERIGEE_CHECK_MSG(span.restore_from < 0 || span.prefix > 0,
                    "a sequence that begins has nothing to restore");
  if (span.prompt_logprobs) {
    const size_t rows = span.tokens.size();
    PERIGEE_CHECK(span.targets.size() == rows || span.targets.size() + 1 == rows);
  }
}

void AppendWantedRows(const PlannedSpan& span, int64_t begin, std::vector<int64_t>& wanted) {
  const int64_t end = begin + static_cast<int64_t>(span.tokens.size());
  if (span.prompt_logprobs) {
    for (int64_t row = begin; row < end; ++row) wanted.push_back(row);
  } else if (span.sample) {
    wanted.push_back(end - 1);
  }
}

}  // namespace

std::vector<Segment> ForwardBatch::Segments(std::span<const SeqSpan> of) const {
  std::vector<Segment> segments;
  segments.reserve(of.size());
  for (const SeqSpan& s : of) {
    const auto seq = static_cast<size_t>(s.seq);
    segments.push_back({.q_begin = s.q_begin,
                        .q_len = s.q_len,
                        .kv_len = s.kv_len,
                        .slot = state_slots[seq],
                        .first_block = static_cast<int32_t>(block_offsets[seq])});
  }
  return segments;
}

ForwardBatch MakeForwardBatch(const BatchPlan& plan) {
  ForwardBatch batch;
  batch.phase = plan.phase;
  batch.token_ids.reserve(static_cast<size_t>(plan.NumRows()));
  batch.block_offsets.push_back(0);
  for (const PlannedSpan& span : plan.spans) {
    CheckSpan(span, plan.phase);
    const int64_t begin = batch.NumRows();
    const auto rows = static_cast<int64_t>(span.tokens.size());
    batch.spans.push_back({.seq = static_cast<int32_t>(batch.spans.size()),
                           .q_begin = begin,
                           .q_len = rows,
                           .kv_len = span.prefix + rows});
    batch.token_ids.insert(batch.token_ids.end(), span.tokens.begin(), span.tokens.end());
    batch.state_slots.push_back(span.state_slot);
    batch.block_tables.insert(batch.block_tables.end(), span.block_table.begin(), span.block_table.end());
    batch.block_offsets.push_back(static_cast<int64_t>(batch.block_tables.size()));
    AppendWantedRows(span, begin, batch.wanted_rows);
  }
  return batch;
}

}  // namespace perigee::batch
