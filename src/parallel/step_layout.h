#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/forward_batch.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/parallel_context.h"
#include "parallel/row_partition.h"
#include "parallel/segment_plan.h"
#include "parallel/token_layout.h"

namespace perigee::parallel {

// How MLA evaluates prompt rows: latents expanded into keys and values, or read directly, or whichever takes
// fewer operations.
enum class AttentionForm : uint8_t { kMaterialised, kAbsorbed, kByCost };

// How one step runs on one rank: its mode and the rank's rows. Derived from the global plan on every rank
// alike.
struct StepLayout {
  StepMode mode = StepMode::kDecode;
  AttentionForm attention_form = AttentionForm::kMaterialised;  // of prompt rows; generated rows are absorbed
  RowPartition rows = RowPartition::Whole(0);
  // This rank's rows as spans: q_begin counts local rows, seq names the batch's sequence. Several spans may
  // be of one sequence.
  std::vector<batch::SeqSpan> local_spans;
  // In the state mode over several CP ranks: how the recurrences run through the ranks.
  SegmentPlan segments;
};

// Rows are sharded by `strategy` in the head, state and replicated modes; elsewhere every rank holds all
// rows.
StepLayout MakeStepLayout(StepMode mode, const batch::ForwardBatch& batch, CpStrategy strategy,
                          const ParallelContext& parallel);

// The spans of some rows of `spans`, named by their places (ascending): runs of neighbours become one span.
std::vector<batch::SeqSpan> SelectSpans(std::span<const batch::SeqSpan> spans,
                                        std::span<const int64_t> places);

}  // namespace perigee::parallel
