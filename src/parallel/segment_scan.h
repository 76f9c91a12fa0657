#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/context.h"
#include "parallel/parallel_context.h"
#include "parallel/segment_plan.h"

namespace perigee::parallel {

// Heads of the shard that the ranks of a CP group hold together.
struct ScanShape {
  int64_t num_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;

  int64_t StateFloats() const { return num_heads * key_dim * value_dim; }
  int64_t TransitionFloats() const { return num_heads * key_dim * key_dim; }
};

// The recurrence of each span through the pieces of all ranks (kernels/kda/kda_summary.h): every rank puts
// down what its own pieces do, Gather exchanges it, and Fold gives the state at any end of a piece. All ranks
// fold in the sequence's order, so that they hold equal bits. A span's first piece is known from its entry
// state: it gives the state that it leaves in place of a summary; so a span that one rank owns whole gives
// its final state alone.
class SegmentScan {
 public:
  // Room for what this rank gives, in the step's workspace. The arguments outlive the object.
  SegmentScan(const ParallelContext& parallel, const SegmentPlan& plan, const kernels::KernelContext& context,
              const ScanShape& shape);

  struct Own {
    Piece piece;
    // [num_heads, key_dim, key_dim]; null for a span's first piece.
    float* transition = nullptr;
    // [num_heads, key_dim, value_dim]: B, or of a first piece the state after it.
    float* state = nullptr;
  };
  // This rank's pieces, in local row order: to be filled before Gather.
  std::span<const Own> own() const { return own_; }

  // Collective in the CP group; once.
  Status Gather();

  // A wanted state: of some heads, after row `row` - 1 of a span, where a piece ends.
  struct Wish {
    int32_t span = 0;
    int64_t row = 0;
    int64_t head_begin = 0;
    int64_t head_end = 0;
    float* state = nullptr;  // [head_end - head_begin, key_dim, value_dim]
  };
  // After Gather.
  void Fold(std::vector<Wish> wishes) const;

  // Floats that CP rank `rank` gives to each other rank.
  static int64_t SentBy(const SegmentPlan& plan, const ScanShape& shape, int rank);

 private:
  const ParallelContext& parallel_;
  const SegmentPlan& plan_;
  const kernels::KernelContext& context_;
  const ScanShape shape_;
  std::vector<int64_t> counts_;    // floats of each rank
  std::vector<int64_t> piece_at_;  // by piece: where it lies in the gather
  std::vector<Own> own_;
  float* send_ = nullptr;
  const float* gathered_ = nullptr;
};

}  // namespace perigee::parallel
