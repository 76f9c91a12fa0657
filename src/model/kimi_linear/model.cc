#include "model/kimi_linear/model.h"

#include "base/check.h"
#include "base/strings.h"
#include "base/trace.h"
#include "layers/kda_attention.h"
#include "layers/mla_attention.h"
#include "model/kimi_linear/options.h"
#include "parallel/layer_communicator.h"

namespace perigee::model {
namespace {

// Fills in the runs of chosen rows, from their places among the rows of `spans`.
void CompleteChoice(const layers::StepContext& step, std::span<const batch::SeqSpan> spans,
                    layers::RowChoice& choice) {
  choice.runs = step.batch.Segments(parallel::SelectSpans(spans, choice.places));
  choice.index = step.kernels.Mirror(choice.places);
  choice.segments = {step.kernels.Mirror(choice.runs), step.segments.block_tables};
}

}  // namespace

KimiLinearModel::KimiLinearModel(const KimiLinearConfig& config,
                                 std::shared_ptr<const layers::WeightSource> weights,
                                 const parallel::Shard& shard,
                                 const std::function<void(uint64_t, uint64_t)>& progress, Device device,
                                 bool prune_last_layer, MemoryLedger* ledger)
    : config_(config), weights_(std::move(weights)), shard_(shard), prune_last_layer_(prune_last_layer) {
  layers::LoadProgress counted{.total = weights_->TotalBytes(), .report = progress, .done = 0, .seen = {}};
  const layers::WeightScope root(*weights_, counted, device, ledger);
  const layers::WeightScope model = root.In("model");
  embed_tokens_ = std::make_unique<layers::Embedding>(shard_, model.In("embed_tokens"));
  int64_t state_layer = 0;
  int64_t kv_layer = 0;
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const layers::WeightScope scope = model.In("layers").In(StrCat(l));
    std::unique_ptr<layers::Attention> attention;
    if (config_.is_kda[static_cast<size_t>(l)]) {
      attention = std::make_unique<layers::KdaAttention>(KdaOf(config_, state_layer++), shard_,
                                                         scope.In("self_attn"));
      attention_kinds_.push_back(parallel::BlockKind::kKda);
    } else {
      attention =
          std::make_unique<layers::MlaAttention>(MlaOf(config_, kv_layer++), shard_, scope.In("self_attn"));
      attention_kinds_.push_back(parallel::BlockKind::kMla);
    }
    std::unique_ptr<layers::FeedForward> feed_forward;
    if (config_.is_moe[static_cast<size_t>(l)]) {
      feed_forward = std::make_unique<layers::Moe>(MoeOf(config_), shard_, scope.In("block_sparse_moe"));
    } else {
      feed_forward = std::make_unique<layers::DenseMlp>(config_.intermediate_size, shard_, scope.In("mlp"));
    }
    layers_.emplace_back(static_cast<size_t>(l), scope, static_cast<float>(config_.rms_norm_eps),
                         std::move(attention), std::move(feed_forward));
  }
  lm_head_ = std::make_unique<layers::LmHead>(config_.vocab_size, shard_, root,
                                              static_cast<float>(config_.rms_norm_eps));
  // A rank reads its shards only: what others hold counts as done.
  if (progress) progress(counted.total, counted.total);
}

VocabularyShare KimiLinearModel::vocabulary() const {
  const parallel::Range range = lm_head_->vocabulary();
  return {range.begin, range.end, shard_.PartBounds(config_.vocab_size)};
}

parallel::ModelShape KimiLinearShape(const KimiLinearConfig& c) {
  parallel::ModelShape shape{.attention = {},
                             .hidden = c.hidden_size,
                             .kda_heads = c.kda_num_heads,
                             .key_dim = c.kda_head_dim,
                             .value_dim = c.kda_head_dim,
                             .conv_history = c.short_conv_kernel_size - 1,
                             .gate_rank = c.kda_gate_rank(),
                             .mla_heads = c.num_attention_heads,
                             .latent = c.kv_lora_rank + c.qk_rope_head_dim,
                             .expand_flops = 2 * c.kv_lora_rank * (c.qk_nope_head_dim + c.v_head_dim)};
  for (const bool kda : c.is_kda) {
    shape.attention.push_back(kda ? parallel::BlockKind::kKda : parallel::BlockKind::kMla);
  }
  return shape;
}

Matrix KimiLinearModel::Embed(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
                              const parallel::StepLayout& layout,
                              const parallel::LayerCommunicator& communicator) const {
  std::vector<int32_t> ids = batch.token_ids;
  if (communicator.EmbedsLocalRows()) {
    ids.clear();
    for (const int64_t row : layout.rows.local()) ids.push_back(batch.token_ids[static_cast<size_t>(row)]);
  }
  const auto rows = static_cast<int64_t>(ids.size());
  const Matrix embedded = context.Room(rows, config_.hidden_size);
  if (communicator.plan().embedding_by_share) {
    embed_tokens_->ForwardShare(context, ids, embedded);
  } else {
    embed_tokens_->Forward(context, context.Mirror(ids), embedded);
  }
  return embedded;
}

Status KimiLinearModel::RunLayers(const layers::StepContext& step, const layers::WantedRows& wanted,
                                  parallel::RowStream& stream) const {
  for (size_t l = 0; l < layers_.size(); ++l) {
    const TraceScope trace("layer", static_cast<long>(l));
    const bool prune = prune_last_layer_ && l + 1 == layers_.size();
    PERIGEE_RETURN_IF_ERROR(layers_[l].Forward(step, prune ? &wanted : nullptr, stream));
  }
  return Status::Ok();
}

Status KimiLinearModel::Forward(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
                                const parallel::StepLayout& layout, const parallel::ParallelContext& parallel,
                                const Caches& caches, Matrix hidden) const {
  const kernels::Workspace::Scope scope(*context.workspace);
  const parallel::LayoutPlan plan =
      parallel::MakeLayoutPlan(layout.mode, attention_kinds_, parallel.tp, parallel.attn_cp);
  parallel::LayerCommunicator communicator(parallel, plan, layout.rows, context);
  const int64_t rows = batch.NumRows();
  const auto room = [&] { return context.Room(rows, config_.hidden_size); };
  const layers::StreamRoom stream_room{room(), room()};
  const StepSpan<int32_t> block_tables = context.Mirror(batch.block_tables);
  const std::vector<Segment> segments = batch.Segments(batch.spans);
  const std::vector<Segment> local_segments = batch.Segments(layout.local_spans);
  const layers::StepContext step{context,
                                 batch,
                                 *caches.kv,
                                 *caches.states,
                                 layout,
                                 communicator,
                                 stream_room,
                                 {context.Mirror(segments), block_tables},
                                 {context.Mirror(local_segments), block_tables}};

  layers::WantedRows wanted;
  wanted.full.places = batch.wanted_rows;
  wanted.rows = layout.rows.Select(batch.wanted_rows, &wanted.local.places);
  CompleteChoice(step, batch.spans, wanted.full);
  CompleteChoice(step, layout.local_spans, wanted.local);

  PERIGEE_ASSIGN_OR_RETURN(parallel::RowStream stream,
                           communicator.Enter(Embed(context, batch, layout, communicator)));
  PERIGEE_RETURN_IF_ERROR(RunLayers(step, wanted, stream));
  PERIGEE_ASSIGN_OR_RETURN(stream, communicator.Exit(stream));
  AddBranch(step, stream);
  if (!prune_last_layer_) {
    stream.residual = SelectRows(step, wanted.Of(plan.boundary_rows), stream.residual);
    communicator.UseRows(wanted.rows);
  }
  lm_head_->FinalNorm(context, stream.residual, stream.residual);
  PERIGEE_ASSIGN_OR_RETURN(const Matrix final_rows, communicator.FinalRows(stream.residual));
  PERIGEE_CHECK(final_rows.rows == hidden.rows);
  StoreRows(step, final_rows, hidden);
  return Status::Ok();
}

void KimiLinearModel::Logits(const kernels::KernelContext& context, ConstMatrix hidden, Matrix logits) const {
  lm_head_->Logits(context, hidden, logits);
}

}  // namespace perigee::model
