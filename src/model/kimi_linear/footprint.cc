#include "model/kimi_linear/footprint.h"

#include <utility>
#include <vector>

#include "layers/tally.h"
#include "model/kimi_linear/options.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/layout_plan.h"

namespace perigee::model {
namespace {

using kernels::WorkspaceTally;
using parallel::Shard;
using parallel::Sharding;
using parallel::Transition;

// Takes what KimiLinearModel::Forward and DecoderLayer::Forward take, call by call, for a step in which every
// row is wanted: then the last layer, which picks the wanted rows out of the others, takes the most.
class StepTally {
 public:
  StepTally(const KimiLinearConfig& config, const Shard& shard, const StepShape& step, WorkspaceTally& tally)
      : c_(config),
        shard_(shard),
        sharded_kda_(Sharded(parallel::BlockKind::kKda, step)),
        sharded_mla_(Sharded(parallel::BlockKind::kMla, step)),
        step_{.phase = step.phase,
              .form = step.form,
              .rows = step.rows,
              .local_rows = parallel::MaxLocalRows(step.rows, step.sequences, step.attn_cp),
              .attn_cp = step.attn_cp,
              .sequences = step.sequences,
              .snapshots = step.snapshots,
              .keys = step.keys},
        tally_(tally) {}

  void Forward(const parallel::LayoutPlan& plan) {
    const WorkspaceTally::Scope scope(tally_);
    for (int i = 0; i < 2; ++i) Rows(step_.rows);  // the stream's room
    Embed(plan);
    for (size_t l = 0; l < c_.is_kda.size(); ++l) Layer(l, plan);
    for (int i = 0; i < 2; ++i) Move(plan.exit);
    Move(plan.final_rows);
  }

 private:
  static bool Sharded(parallel::BlockKind kind, const StepShape& step) {
    return step.attn_cp > 1 && parallel::LayoutsOf(kind, step.mode).input == Sharding::kCp;
  }
  void Rows(int64_t rows) { tally_.Floats(rows * c_.hidden_size); }
  void Move(Transition t) { TallyMove(t, c_.hidden_size, step_, tally_); }

  void Embed(const parallel::LayoutPlan& plan) {
    const bool local = plan.entry == Transition::kSlice && !plan.embedding_by_share;
    Rows(local ? step_.local_rows : step_.rows);
    if (plan.embedding_by_share) {
      const WorkspaceTally::Scope scope(tally_);
      Rows(step_.rows);
    }
    if (!local) Move(plan.entry);
  }

  void Layer(size_t l, const parallel::LayoutPlan& plan) {
    const WorkspaceTally::Scope scope(tally_);
    const parallel::BlockTransitions& attention = plan.blocks[2 * l];
    const parallel::BlockTransitions& feed_forward = plan.blocks[2 * l + 1];
    const bool last = l + 1 == c_.is_kda.size();
    Prepare(attention);
    if (c_.is_kda[l]) {
      layers::TallyKda(KdaOf(c_, 0), shard_, c_.hidden_size, step_, sharded_kda_, last, tally_);
    } else {
      layers::TallyMla(MlaOf(c_, 0), shard_, c_.hidden_size, step_, sharded_mla_, last, tally_);
    }
    if (last) Rows(step_.Rows(attention.stream_rows));
    Move(attention.output);
    Prepare(feed_forward);
    const int64_t rows = step_.Rows(feed_forward.input_rows);
    if (c_.is_moe[l]) {
      layers::TallyMoe(MoeOf(c_), shard_, c_.hidden_size, rows, tally_);
    } else {
      layers::TallyDenseMlp(c_.intermediate_size, shard_, c_.hidden_size, rows, tally_);
    }
    Move(feed_forward.output);
  }

  // Residual and branch to where the norm runs, the normed rows to where the block wants them, and its
  // result.
  void Prepare(const parallel::BlockTransitions& block) {
    for (int i = 0; i < 2; ++i) Move(block.stream);
    Rows(step_.Rows(block.stream_rows));
    Move(block.input);
    Rows(step_.Rows(block.input_rows));
  }

  const KimiLinearConfig& c_;
  const Shard& shard_;
  const bool sharded_kda_;
  const bool sharded_mla_;
  const layers::StepBound step_;
  WorkspaceTally& tally_;
};

class KimiLinearFootprint final : public ModelFootprint {
 public:
  KimiLinearFootprint(const KimiLinearConfig& config, DTypeOf dtype_of)
      : config_(config), dtype_of_(std::move(dtype_of)) {}

  ModelSizes sizes() const override {
    return {.vocab_size = config_.vocab_size,
            .kda_heads = config_.NumKdaLayers() > 0 ? config_.kda_num_heads : 0,
            .mla_heads = config_.NumMlaLayers() > 0 ? config_.num_attention_heads : 0,
            .experts = config_.NumMoeLayers() > 0 ? config_.num_experts : 0};
  }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t max_context() const override { return config_.model_max_length; }
  CacheShape cache_shape(const Shard& shard) const override { return KimiLinearCacheShape(config_, shard); }
  uint64_t weight_bytes(const Shard& shard, Device device) const override {
    return KimiLinearWeightBytes(config_, shard, device, dtype_of_);
  }
  uint64_t embedding_bytes() const override {
    return static_cast<uint64_t>(config_.vocab_size * config_.hidden_size) *
           DTypeBytes(dtype_of_("model.embed_tokens.weight"));
  }
  void TallyForward(const Shard& shard, const StepShape& step, WorkspaceTally& tally) const override {
    TallyKimiLinear(config_, shard, step, tally);
  }

 private:
  const KimiLinearConfig config_;
  const DTypeOf dtype_of_;
};

}  // namespace

CacheShape KimiLinearCacheShape(const KimiLinearConfig& config, const parallel::Shard& shard) {
  const int64_t width = shard.Of(config.kda_num_heads).size() * config.kda_head_dim;
  return {.kv_layers = config.NumMlaLayers(),
          .kv_width = config.kv_lora_rank + config.qk_rope_head_dim,
          .state_layers = config.NumKdaLayers(),
          .recurrent_floats = width * config.kda_head_dim,
          .conv_floats = (config.short_conv_kernel_size - 1) * 3 * width};
}

void TallyKimiLinear(const KimiLinearConfig& config, const parallel::Shard& shard, const StepShape& step,
                     WorkspaceTally& tally) {
  std::vector<parallel::BlockKind> kinds;
  for (const bool kda : config.is_kda)
    kinds.push_back(kda ? parallel::BlockKind::kKda : parallel::BlockKind::kMla);
  StepTally(config, shard, step, tally)
      .Forward(parallel::MakeLayoutPlan(step.mode, kinds, step.tp, step.attn_cp));
}

std::unique_ptr<ModelFootprint> MakeKimiLinearFootprint(const KimiLinearConfig& config, DTypeOf dtype_of) {
  return std::make_unique<KimiLinearFootprint>(config, std::move(dtype_of));
}

}  // namespace perigee::model
