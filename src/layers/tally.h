#pragma once

#include <cstdint>

#include "batch/seq_span.h"
#include "kernels/context.h"
#include "layers/feed_forward.h"
#include "layers/kda_attention.h"
#include "layers/mla_attention.h"
#include "parallel/layout_plan.h"
#include "parallel/shard.h"
#include "parallel/step_layout.h"

// Room that the layers take from the workspace of a rank, call by call as their Forward does: upper bounds
// over all steps up to a size. Pure.
namespace perigee::layers {

// The largest step of a kind.
struct StepBound {
  batch::Phase phase = batch::Phase::kPrefill;
  parallel::AttentionForm form = parallel::AttentionForm::kMaterialised;  // of prompt rows
  int64_t rows = 0;                                                       // of the step
  int64_t local_rows = 0;  // of this rank where rows are sharded
  int64_t attn_cp = 1;
  int64_t sequences = 0;
  int64_t snapshots = 0;  // states kept in the middle of the step
  int64_t keys = 0;       // of the longest sequence

  int64_t Rows(parallel::Sharding held) const { return held == parallel::Sharding::kCp ? local_rows : rows; }
};

// sharded: each rank works on its own rows. picks: the last layer, where the wanted rows (at most all) are
// picked out of the others.
void TallyKda(const KdaOptions& options, const Shard& shard, int64_t hidden, const StepBound& step,
              bool sharded, bool picks, kernels::WorkspaceTally& tally);
void TallyMla(const MlaOptions& options, const Shard& shard, int64_t hidden, const StepBound& step,
              bool sharded, bool picks, kernels::WorkspaceTally& tally);
void TallyDenseMlp(int64_t width, const Shard& shard, int64_t hidden, int64_t rows,
                   kernels::WorkspaceTally& tally);
void TallyMoe(const MoeOptions& options, const Shard& shard, int64_t hidden, int64_t rows,
              kernels::WorkspaceTally& tally);
// Rows of `cols` floats through a LayerCommunicator's transition.
void TallyMove(parallel::Transition transition, int64_t cols, const StepBound& step,
               kernels::WorkspaceTally& tally);

}  // namespace perigee::layers
