#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/seq_span.h"

namespace perigee::parallel {

// A run of a span's new rows that one rank owns.
struct Segment {
  int32_t span = 0;
  int64_t begin = 0;  // first row, relative to the span's first
  int64_t len = 0;    // >= 1

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Who owns which rows of a step: for each CP rank its segments in local row order. Ranks may own nothing.
struct CpPlan {
  std::vector<std::vector<Segment>> ranks;

  int64_t Rows(int rank) const;
};

// Query-key pairs that a segment's rows see: its row i sees prefix + begin + i + 1 keys. What attention
// costs.
int64_t VisiblePairs(const batch::SeqSpan& span, const Segment& segment);

// Adds spans that a strategy does not split, in order, each to the rank with the fewest visible pairs so far
// (the lowest among equals).
void AssignWholeSpans(std::span<const batch::SeqSpan> spans, std::span<const int32_t> whole, CpPlan& plan);

// A broken plan is a defect of a strategy: CHECKs that every row of every span has exactly one owner.
void CheckPlan(std::span<const batch::SeqSpan> spans, const CpPlan& plan);

}  // namespace perigee::parallel
