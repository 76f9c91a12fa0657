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

bool GathersLatents(const LayoutPlan& plan, BlockKind kind, int attn_cp) {
  return kind == BlockKind::kMla && attn_cp > 1 &&
         parallel::LayoutsOf(kind, plan.mode).input == Sharding::kCp;
}

PlanTransition RowOf(const LayoutPlan& plan, const BlockTransitions& block, int attn_cp) {
  const bool latents = GathersLatents(plan, block.kind, attn_cp);
  return {.kind = std::string(parallel::BlockKindName(block.kind)),
          .blocks = 1,
          .stream = Name(block.stream),
          .input = Name(block.input),
          .latents = Name(latents ? Transition::kAllGather : Transition::kNone),
          .output = Name(block.output),
          .rows = RowsName(block.input_rows)};
}

// Parts of a row that a rank sends for each row of the step, as comm counts: what it hands to others.
class RowTraffic {
 public:
  RowTraffic(int tp, int attn_cp)
      : gather_(Others(attn_cp)),
        reduce_tp_(2 * Others(tp)),
        // Over the ranks with the same rows, a C-th of the step's.
        reduce_attn_tp_(2 * Others(tp / attn_cp) / attn_cp) {}

  double Of(Transition t) const {
    switch (t) {
      case Transition::kNone:
      case Transition::kSlice:
        return 0;
      case Transition::kAllGather:
        return gather_;
      case Transition::kAllReduceTp:
        return reduce_tp_;
      case Transition::kAllReduceAttnTp:
        return reduce_attn_tp_;
      case Transition::kReduceScatter:
        return gather_ + reduce_attn_tp_;
    }
    return 0;
  }

 private:
  static double Others(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

  double gather_;
  double reduce_tp_;
  double reduce_attn_tp_;
};

}  // namespace

std::vector<BlockKind> AttentionKinds(const model::KimiLinearConfig& config) {
  std::vector<BlockKind> kinds;
  for (const bool kda : config.is_kda) kinds.push_back(kda ? BlockKind::kKda : BlockKind::kMla);
  return kinds;
}

std::vector<PlanTransition> TransitionTable(const LayoutPlan& plan, int attn_cp) {
  const std::string none = Name(Transition::kNone);
  std::vector<PlanTransition> table;
  table.push_back({.kind = "entry",
                   .blocks = 1,
                   .stream = Name(plan.entry),
                   .input = none,
                   .latents = none,
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
                   .output = Name(plan.final_rows),
                   .rows = RowsName(plan.boundary_rows)});
  return table;
}

PlanElements CountElements(const LayoutPlan& plan, const model::KimiLinearConfig& config, int tp,
                           int attn_cp) {
  const RowTraffic traffic(tp, attn_cp);
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto record = static_cast<double>(config.kv_lora_rank + config.qk_rope_head_dim);
  PlanElements sum;
  sum.entry = hidden * (traffic.Of(plan.embedding_output) + traffic.Of(plan.entry));
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const BlockTransitions& block = plan.blocks[b];
    // Only the embedded rows have no branch beside them.
    const double stream = hidden * traffic.Of(block.stream) * (b == 0 ? 1 : 2);
    const double input = hidden * traffic.Of(block.input);
    const double output = hidden * traffic.Of(block.output);
    const double latents =
        GathersLatents(plan, block.kind, attn_cp) ? record * traffic.Of(Transition::kAllGather) : 0;
    const double block_sum = stream + input + latents + output;
    if (block.kind == BlockKind::kFeedForward) sum.feed_forward += block_sum;
    if (block.kind == BlockKind::kKda) sum.kda += block_sum;
    if (block.kind == BlockKind::kMla) sum.mla += block_sum;
    // In the last layer all rows reach the attention block, and wanted rows leave it.
    if (b + 2 == plan.blocks.size()) sum.last_layer += output;
    if (b + 1 == plan.blocks.size()) sum.last_layer += block_sum;
  }
  const double final_rows = hidden * (2 * traffic.Of(plan.exit) + traffic.Of(plan.final_rows));
  (plan.mode == parallel::StepMode::kReplicated ? sum.exit : sum.logits) = final_rows;
  sum.last_layer += sum.exit;
  sum.total = sum.entry + sum.kda + sum.mla + sum.feed_forward + sum.exit;
  return sum;
}

}  // namespace perigee::engine
