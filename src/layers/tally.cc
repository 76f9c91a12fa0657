#include "layers/tally.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_step.h"
#include "kernels/kda/kda_summary.h"
#include "kernels/mla/mla.h"
#include "kernels/moe/moe.h"

namespace perigee::layers {
namespace {

using kernels::kSumParts;
using kernels::WorkspaceTally;

// One share's heads: queries and their attention.
void TallyAttention(const kernels::MlaDims& dims, int64_t hidden, int64_t rows, const StepBound& step,
                    WorkspaceTally& tally) {
  const WorkspaceTally::Scope scope(tally);
  tally.Floats(rows * dims.num_heads * dims.qk());
  TallyGemm(tally, rows, dims.num_heads * dims.qk(), hidden);
  const bool prefill = step.phase == batch::Phase::kPrefill;
  if (prefill && step.form != parallel::AttentionForm::kAbsorbed)
    TallyMlaPrefill(tally, dims, rows, step.keys);
  if (!prefill || step.form != parallel::AttentionForm::kMaterialised)
    TallyMlaDecode(tally, dims, rows, step.keys);
}

// As KdaAttention::MixSegments with its halo and its scan. Every span may be cut in two pieces a rank, and
// once more at each snapshot.
void TallySegments(const KdaOptions& options, const Shard& shard, int64_t heads, const StepBound& step,
                   WorkspaceTally& tally) {
  const int64_t dim = options.head_dim, width = heads * dim;
  const int64_t own = std::min(step.local_rows, 2 * step.sequences + step.snapshots);
  const int64_t all = std::min(step.rows, 2 * step.attn_cp * step.sequences + step.snapshots);
  const int64_t tail = (options.conv_width - 1) * 3 * width;
  const int64_t entry = CeilDiv(tail, step.attn_cp) + shard.Of(options.num_heads).size() * dim * dim;
  tally.Floats(own * tail + step.sequences * entry);
  tally.Floats(all * tail + step.attn_cp * step.sequences * entry);
  tally.Floats(own * tail);
  tally.Floats(step.local_rows * 3 * width);
  tally.Floats(step.local_rows * heads);
  tally.Floats(step.local_rows * width);
  const int64_t summary = 2 * width * dim;
  tally.Floats(own * summary);
  tally.Floats(own * width * dim);
  tally.Floats(all * summary);
  TallyKdaPrefill(tally, own, 0, heads, dim, dim);
  TallyKdaSummary(tally, std::max(own, step.sequences), heads, dim, dim);
}

}  // namespace

void TallyKda(const KdaOptions& options, const Shard& shard, int64_t hidden, const StepBound& step,
              bool sharded, bool picks, WorkspaceTally& tally) {
  const WorkspaceTally::Scope scope(tally);
  const int64_t rows = sharded ? step.local_rows : step.rows;
  const int64_t heads = (sharded ? shard.Held(options.num_heads) : shard.Of(options.num_heads)).size();
  const int64_t dim = options.head_dim, width = heads * dim, rank = options.gate_rank;
  const int64_t projected = 3 * width + heads + 2 * rank;
  tally.Floats(rows * AlignUp<int64_t>(projected, 8));
  TallyGemm(tally, rows, projected, hidden);
  tally.Floats(rows * width);
  TallyGemm(tally, rows, width, rank);
  tally.Floats(rows * width);
  const auto output_gate = [&] {
    tally.Floats(rows * width);
    TallyGemm(tally, rows, width, rank);
  };
  const bool one_row_each = !sharded && step.phase == batch::Phase::kDecode;
  if (one_row_each) {
    output_gate();
    TallyKdaStep(tally, rows, heads, dim, dim);
  } else if (sharded) {
    TallySegments(options, shard, heads, step, tally);
  } else {
    tally.Floats(rows * 3 * width);
    tally.Floats(rows * heads);
    TallyKdaPrefill(tally, step.sequences, rows, heads, dim, dim);
  }
  if (picks) tally.Floats(rows * width);
  if (!one_row_each) {
    if (picks) tally.Floats(rows * rank);
    output_gate();
  }
  TallyGemm(tally, rows, hidden, width, kSumParts);
}

void TallyMla(const MlaOptions& options, const Shard& shard, int64_t hidden, const StepBound& step,
              bool sharded, bool picks, WorkspaceTally& tally) {
  const WorkspaceTally::Scope scope(tally);
  const int64_t rows = sharded ? step.local_rows : step.rows;
  const int64_t record = options.dims.record();
  tally.Floats(rows * record);
  TallyGemm(tally, rows, record, hidden);
  if (sharded) TallyMove(parallel::Transition::kAllGather, record, step, tally);
  if (picks) tally.Floats(rows * hidden);
  const int64_t first = sharded ? shard.first_held : shard.share;
  const int64_t last = sharded ? first + shard.num_held : first + 1;
  const Range heads = {shard.Of(options.dims.num_heads, first).begin,
                       shard.Of(options.dims.num_heads, last - 1).end};
  const int64_t width = heads.size() * options.dims.value;
  tally.Floats(rows * width);
  for (int64_t s = first; s < last; ++s) {
    kernels::MlaDims dims = options.dims;
    dims.num_heads = shard.Of(options.dims.num_heads, s).size();
    TallyAttention(dims, hidden, rows, step, tally);
  }
  TallyGemm(tally, rows, hidden, width, kSumParts);
}

void TallyDenseMlp(int64_t width, const Shard& shard, int64_t hidden, int64_t rows, WorkspaceTally& tally) {
  TallyGatedMlp(tally, rows, hidden, shard.Of(width).size(), kSumParts);
}

void TallyMoe(const MoeOptions& options, const Shard& shard, int64_t hidden, int64_t rows,
              WorkspaceTally& tally) {
  const WorkspaceTally::Scope scope(tally);
  const parallel::ExpertShare held = ExpertsOf(shard, options.num_experts, options.width);
  tally.Floats(rows * options.num_experts);
  TallyGemm(tally, rows, options.num_experts, hidden);
  for (int i = 0; i < 2; ++i) tally.Floats(rows * options.router.top_k);
  TallyMoe(tally,
           {.hidden = hidden,
            .experts = held.experts.size(),
            .top_k = options.router.top_k,
            .width = held.width.size(),
            .shared_width = shard.Of(options.shared_width).size(),
            .parts = kSumParts},
           rows);
}

void TallyMove(parallel::Transition transition, int64_t cols, const StepBound& step, WorkspaceTally& tally) {
  switch (transition) {
    case parallel::Transition::kSlice:
      return tally.Floats(step.local_rows * cols);
    case parallel::Transition::kAllGather:
      for (int i = 0; i < 2; ++i) tally.Floats(step.rows * cols);
      return;
    case parallel::Transition::kReduceScatter:
      tally.Floats(step.rows * cols);
      return tally.Floats(step.local_rows * cols);
    case parallel::Transition::kNone:
    case parallel::Transition::kAllReduceTp:
    case parallel::Transition::kAllReduceAttnTp:
      return;
  }
}

}  // namespace perigee::layers
