#include "engine/plan_traffic.h"

#include <algorithm>
#include <string_view>

namespace perigee::engine {
namespace {

using parallel::BlockKind;
using parallel::BlockTransitions;
using parallel::LayoutPlan;
using parallel::Sharding;
using parallel::Transition;

std::string Name(Transition t) {
  return std::string(parallel::TransitionName(t));
}

std::string RowsName(Sharding rows) {
  return rows == Sharding::kCp ? "cp" : "full";
}

// KDA that keeps to its rows: what stands before its segments, and what they do to the state.
bool GathersStates(const LayoutPlan& plan, BlockKind kind, int attn_cp) {
  return kind == BlockKind::kKda && attn_cp > 1 &&
         parallel::LayoutsOf(kind, plan.mode).input == Sharding::kCp;
}

bool GathersLatents(const LayoutPlan& plan, BlockKind kind, int attn_cp) {
  return kind == BlockKind::kMla && attn_cp > 1 &&
         parallel::LayoutsOf(kind, plan.mode).input == Sharding::kCp;
}

PlanTransition RowOf(const LayoutPlan& plan, const BlockTransitions& block, int attn_cp) {
  const bool latents = GathersLatents(plan, block.kind, attn_cp);
  return {
      .kind = std::string(parallel::BlockKindName(block.kind)),
      .blocks = 1,
      .stream = Name(block.stream),
      .input = Name(block.input),
      .latents = Name(latents ? Transition::kAllGather : Transition::kNone),
      .states = Name(GathersStates(plan, block.kind, attn_cp) ? Transition::kAllGather : Transition::kNone),
      .output = Name(block.output),
      .rows = RowsName(block.input_rows)};
}

}  // namespace

std::vector<PlanTransition> TransitionTable(const LayoutPlan& plan, int attn_cp) {
  const std::string none = Name(Transition::kNone);
  std::vector<PlanTransition> table;
  table.push_back({.kind = "entry",
                   .blocks = 1,
                   .stream = Name(plan.entry),
                   .input = none,
                   .latents = none,
                   .states = none,
                   .output = Name(plan.embedding_output),
                   .rows = RowsName(plan.boundary_rows)});
  for (const BlockKind kind : {BlockKind::kKda, BlockKind::kMla, BlockKind::kFeedForward}) {
    std::vector<BlockTransitions> seen;
    const size_t first = table.size();
    for (const BlockTransitions& block : plan.blocks) {
      if (block.kind != kind) continue;
      const auto found = std::find(seen.begin(), seen.end(), block);
      if (found != seen.end()) {
        ++table[first + static_cast<size_t>(found - seen.begin())].blocks;
      } else {
        seen.push_back(block);
        table.push_back(RowOf(plan, block, attn_cp));
      }
    }
  }
  table.push_back({.kind = "exit",
                   .blocks = 1,
                   .stream = Name(plan.exit),
                   .input = none,
                   .latents = none,
                   .states = none,
                   .output = Name(plan.final_rows),
                   .rows = RowsName(plan.boundary_rows)});
  return table;
}

PlanElements CountElements(const LayoutPlan& plan, const parallel::ModelShape& model,
                           const parallel::RankShape& ranks, int64_t chunk) {
  const int attn_cp = ranks.attn_cp;
  const auto sent = [&](Transition t) { return parallel::SentPerRow(t, ranks.tp, attn_cp).total(); };
  const auto hidden = static_cast<double>(model.hidden);
  const auto record = static_cast<double>(model.latent);
  PlanElements sum;
  sum.entry = hidden * (sent(plan.embedding_output) + sent(plan.entry));
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const BlockTransitions& block = plan.blocks[b];
    // Only the embedded rows have no branch beside them.
    const double stream = hidden * sent(block.stream) * (b == 0 ? 1 : 2);
    const double input = hidden * sent(block.input);
    const double output = hidden * sent(block.output);
    const double latents =
        GathersLatents(plan, block.kind, attn_cp) ? record * sent(Transition::kAllGather) : 0;
    const double block_sum = stream + input + latents + output;
    if (block.kind == BlockKind::kFeedForward) sum.feed_forward += block_sum;
    if (block.kind == BlockKind::kKda) sum.kda += block_sum;
    if (GathersStates(plan, block.kind, attn_cp)) {
      const batch::SeqSpan first{.q_len = chunk, .kv_len = chunk}, later{.q_len = chunk, .kv_len = 2 * chunk};
      const auto total = [&](const batch::SeqSpan& span) {
        return static_cast<double>(parallel::CountStateElements(model, ranks, {&span, 1}).total());
      };
      sum.first_chunk += total(first);
      sum.later_chunk += total(later);
    }
    if (block.kind == BlockKind::kMla) sum.mla += block_sum;
    // In the last layer all rows reach the attention block, and wanted rows leave it.
    if (b + 2 == plan.blocks.size()) sum.last_layer += output;
    if (b + 1 == plan.blocks.size()) sum.last_layer += block_sum;
  }
  const double final_rows = hidden * (2 * sent(plan.exit) + sent(plan.final_rows));
  (plan.mode == parallel::StepMode::kReplicated ? sum.exit : sum.logits) = final_rows;
  sum.last_layer += sum.exit;
  sum.total = sum.entry + sum.kda + sum.mla + sum.feed_forward + sum.exit;
  return sum;
}

}  // namespace perigee::engine
