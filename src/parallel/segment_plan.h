#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/forward_batch.h"
#include "batch/seq_span.h"
#include "parallel/cp/cp_plan.h"

namespace perigee::parallel {

// A segment, or the part of one between two cuts: rows that are exchanged as one step of a span's recurrence.
struct Piece {
  int32_t span = 0;
  int64_t begin = 0;      // first row, relative to the span's first
  int64_t len = 0;        // >= 1
  int rank = 0;           // CP rank that owns it
  int64_t local_row = 0;  // its first row among the owner's rows

  int64_t end() const { return begin + len; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

// How the recurrence of each span runs through the ranks of a CP group. A plain value, equal on every rank
// but for `rank`.
struct SegmentPlan {
  int rank = 0;
  std::vector<batch::SeqSpan> spans;       // of the step
  std::vector<Piece> pieces;               // span after span, each in the sequence's order
  std::vector<size_t> span_begin;          // [spans + 1]: where a span's pieces begin
  std::vector<std::vector<size_t>> ranks;  // for each CP rank its pieces, in local row order

  std::span<const Piece> OfSpan(int32_t span) const;
  // Pieces of a span that begin before its row `row`, which is the end of one of them.
  int64_t PiecesBefore(int32_t span, int64_t row) const;
};

// Pieces of the segments of `plan`, cut where a state is wanted inside a span. A cut lies inside the new rows
// of its sequence or at their end, at a multiple of 64 tokens; span i is that of sequence i.
SegmentPlan MakeSegmentPlan(std::span<const batch::SeqSpan> spans, const CpPlan& plan,
                            std::span<const batch::StateSnapshot> cuts, int rank);

}  // namespace perigee::parallel
