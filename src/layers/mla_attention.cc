#include "layers/mla_attention.h"

#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::layers {
namespace {

// The model's own code leaves this norm's epsilon at the class default, whatever rms_norm_eps says
// (specification 3.2).
constexpr float kLatentNormEps = 1e-6f;

}  // namespace

MlaAttention::MlaAttention(const MlaOptions& options, const Shard& shard, const WeightScope& weights)
    : options_(options), own_(shard.share - shard.first_held) {
  const kernels::MlaDims& dims = options.dims;
  for (int64_t s = shard.first_held; s < shard.first_held + shard.num_held; ++s) {
    const Range heads = shard.Of(dims.num_heads, s);
    Heads h;
    h.dims = dims;
    h.dims.num_heads = heads.size();
    h.q_proj = weights.Linear({{"q_proj", Range{heads.begin * dims.qk(), heads.end * dims.qk()}}});
    const int64_t kv_rows = dims.nope + dims.value;
    weights.Matrix("kv_b_proj.weight", {heads.begin * kv_rows, heads.end * kv_rows},
                   [&](const kernels::StoredMatrix& m) {
                     h.kv_b = kernels::MlaWeights::Pack(h.dims, m, weights.device(), weights.ledger());
                   });
    held_.push_back(std::move(h));
  }
  kv_a_proj_ = weights.Linear({{"kv_a_proj_with_mqa", std::nullopt}});
  kv_a_layernorm_ = weights.Parameters("kv_a_layernorm.weight");
  const int64_t width = dims.num_heads * dims.value;
  const Range held = shard.Held(dims.num_heads);
  o_proj_ = weights.LinearCols("o_proj", {held.begin * dims.value, held.end * dims.value});
  held_parts_ = shard.PartBounds(width, shard.first_held, shard.num_held);
  own_parts_ = shard.PartBounds(width);
  for (int64_t& bound : own_parts_) bound += (shard.Of(dims.num_heads).begin - held.begin) * dims.value;
}

Status MlaAttention::Append(const StepContext& step, ConstMatrix x, bool sharded) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::MlaDims& dims = options_.dims;
  Matrix records = k.Room(x.rows, dims.record());
  Gemm(k, x, kv_a_proj_, records);
  RmsNorm(k, records.Cols(0, dims.rank), kv_a_layernorm_, kLatentNormEps, records.Cols(0, dims.rank));
  if (sharded) {
    PERIGEE_ASSIGN_OR_RETURN(records, step.communicator.GatherRows(records));
  }
  MlaAppend(k, records.Cols(0, dims.rank), records.Cols(dims.rank, dims.rope), step.segments,
            step.kv.View(options_.kv_layer));
  return Status::Ok();
}

// By cost: expanding a key costs 2 rank (nope + value) operations a head, once a sequence; reading latents
// costs 2 (2 rank - nope - value) more per query row and key. Decided from the rows of a sequence on a rank,
// on average over the step, so that every rank decides alike.
bool MlaAttention::ReadsLatents(const StepContext& step) const {
  if (step.batch.phase == batch::Phase::kDecode) return true;
  if (step.layout.attention_form != parallel::AttentionForm::kByCost) {
    return step.layout.attention_form == parallel::AttentionForm::kAbsorbed;
  }
  const kernels::MlaDims& dims = options_.dims;
  const auto ranks = static_cast<int64_t>(step.layout.rows.counts().size());
  const auto sequences = static_cast<int64_t>(step.batch.spans.size());
  const int64_t rows = step.layout.rows.total_rows() / (ranks * sequences);
  return rows * (2 * dims.rank - dims.nope - dims.value) < dims.rank * (dims.nope + dims.value);
}

Status MlaAttention::Forward(const StepContext& step, ConstMatrix x, const RowChoice* chosen,
                             Matrix y) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::Workspace::Scope scope(*k.workspace);
  const bool sharded = step.communicator.RowsAreSharded(parallel::BlockKind::kMla);
  PERIGEE_RETURN_IF_ERROR(Append(step, x, sharded));

  PagedSegments segments = sharded ? step.local_segments : step.segments;
  if (chosen != nullptr) {
    segments = chosen->segments;
    const Matrix rows = k.Room(y.rows, x.cols);
    GatherRows(k, x, chosen->index, rows);
    x = rows;
  }
  const std::span<const Heads> heads =
      sharded ? std::span<const Heads>(held_)
              : std::span<const Heads>(held_).subspan(static_cast<size_t>(own_), 1);
  int64_t out_width = 0;
  for (const Heads& h : heads) out_width += h.dims.num_heads * h.dims.value;
  const Matrix attended = k.Room(x.rows, out_width);
  const bool absorbed = ReadsLatents(step);
  const auto attend = absorbed ? kernels::MlaDecode : kernels::MlaPrefill;
  int64_t column = 0;
  for (const Heads& h : heads) {
    const kernels::Workspace::Scope share_scope(*k.workspace);
    const Matrix q = k.Room(x.rows, h.q_proj.out());
    Gemm(k, x, h.q_proj, q);
    const int64_t width = h.dims.num_heads * h.dims.value;
    attend(k, h.dims, h.kv_b, q, segments, step.kv.View(options_.kv_layer), attended.Cols(column, width));
    column += width;
  }
  GemmInParts(k, attended, o_proj_, sharded ? held_parts_ : own_parts_, y);
  return Status::Ok();
}

}  // namespace perigee::layers
