#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/batch_plan.h"
#include "batch/seq_span.h"
#include "tensor/segment.h"

namespace perigee::batch {

// A BatchPlan in the form that layers and kernels read: flat arrays over rows and sequences.
struct ForwardBatch {
  Phase phase = Phase::kPrefill;
  std::vector<int32_t> token_ids;     // [rows]
  std::vector<SeqSpan> spans;         // [seqs], in row order, seq == index
  std::vector<int32_t> state_slots;   // [seqs]
  std::vector<int32_t> block_tables;  // all sequences' tables, concatenated
  std::vector<int64_t>
      block_offsets;  // [seqs + 1]: table of sequence s is [block_offsets[s], block_offsets[s + 1])
  std::vector<StateSnapshot> snapshots;
  std::vector<int64_t> wanted_rows;  // ascending: rows whose final hidden state is wanted

  int64_t NumRows() const { return static_cast<int64_t>(token_ids.size()); }
  std::span<const int32_t> BlockTable(int64_t seq) const {
    const auto begin = static_cast<size_t>(block_offsets[static_cast<size_t>(seq)]);
    const auto end = static_cast<size_t>(block_offsets[static_cast<size_t>(seq) + 1]);
    return std::span<const int32_t>(block_tables).subspan(begin, end - begin);
  }
  // The form that kernels read, of any spans of the batch's sequences.
  std::vector<Segment> Segments(std::span<const SeqSpan> of) const;
};

// Flattens a plan. wanted_rows: the last row of every sampled span, all rows of spans with prompt_logprobs.
ForwardBatch MakeForwardBatch(const BatchPlan& plan);

}  // namespace perigee::batch
