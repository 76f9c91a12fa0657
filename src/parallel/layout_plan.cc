#include "parallel/layout_plan.h"

#include "base/check.h"

namespace perigee::parallel {
namespace {

// From one layout to another with the groups that exist; kNone where only groups of one rank would talk.
Transition Between(TokenLayout from, Sharding to, int tp, int attn_cp) {
  const int attn_tp = tp / attn_cp;
  if (from.pending == PendingSum::kTp) {
    PERIGEE_CHECK(from.sharding == Sharding::kFull);
    if (to == Sharding::kCp && attn_cp > 1) return Transition::kReduceScatter;
    return tp > 1 ? Transition::kAllReduceTp : Transition::kNone;
  }
  if (from.pending == PendingSum::kAttnTp) {
    PERIGEE_CHECK(from.sharding == to);
    return attn_tp > 1 ? Transition::kAllReduceAttnTp : Transition::kNone;
  }
  if (from.sharding == to || attn_cp == 1) return Transition::kNone;
  return to == Sharding::kCp ? Transition::kSlice : Transition::kAllGather;
}

}  // namespace

std::string_view BlockKindName(BlockKind kind) {
  switch (kind) {
    case BlockKind::kKda:
      return "kda";
    case BlockKind::kMla:
      return "mla";
    case BlockKind::kFeedForward:
      return "feed_forward";
  }
  return "?";
}

std::string_view TransitionName(Transition t) {
  switch (t) {
    case Transition::kNone:
      return "none";
    case Transition::kSlice:
      return "slice";
    case Transition::kAllGather:
      return "all_gather";
    case Transition::kAllReduceTp:
      return "all_reduce_tp";
    case Transition::kAllReduceAttnTp:
      return "all_reduce_attn_tp";
    case Transition::kReduceScatter:
      return "reduce_scatter";
  }
  return "?";
}

BlockLayouts LayoutsOf(BlockKind kind, StepMode mode) {
  constexpr TokenLayout kByShare{Sharding::kFull, PendingSum::kTp};
  constexpr TokenLayout kByShard{Sharding::kCp, PendingSum::kAttnTp};
  const bool sharded_attention = kind == BlockKind::kMla;
  switch (mode) {
    case StepMode::kDecode:
    case StepMode::kTp:
      return {Sharding::kFull, Sharding::kFull, kByShare};
    case StepMode::kHead:
      if (sharded_attention) return {Sharding::kCp, Sharding::kCp, kByShard};
      return {Sharding::kCp, Sharding::kFull, kByShare};
    case StepMode::kState:
      if (kind == BlockKind::kFeedForward) return {Sharding::kCp, Sharding::kFull, kByShare};
      return {Sharding::kCp, Sharding::kCp, kByShard};
    case StepMode::kReplicated:
      if (sharded_attention) return {Sharding::kCp, Sharding::kCp, kByShard};
      return {Sharding::kFull, Sharding::kFull, kByShare};
  }
  PERIGEE_CHECK(false);
  return {};
}

LayoutPlan MakeLayoutPlan(StepMode mode, std::span<const BlockKind> attention, int tp, int attn_cp) {
  LayoutPlan plan;
  plan.mode = mode;
  // The seed's embedding is cut over the vocabulary and its model boundary hands out CP shards both ways.
  const bool seed_boundary = mode == StepMode::kReplicated;
  plan.embedding_by_share = seed_boundary && tp > 1;
  if (plan.embedding_by_share) plan.embedding_output = Transition::kAllReduceTp;
  const Sharding boundary =
      mode == StepMode::kDecode || mode == StepMode::kTp ? Sharding::kFull : Sharding::kCp;
  plan.entry = Between({Sharding::kFull, PendingSum::kNone}, boundary, tp, attn_cp);
  Sharding stream = boundary;
  const auto add = [&](BlockKind kind) {
    const BlockLayouts want = LayoutsOf(kind, mode);
    BlockTransitions block;
    block.kind = kind;
    block.stream = Between({stream, PendingSum::kNone}, want.stream, tp, attn_cp);
    block.input = Between({want.stream, PendingSum::kNone}, want.input, tp, attn_cp);
    block.output = Between(want.output, want.stream, tp, attn_cp);
    if (attn_cp > 1) {
      block.stream_rows = want.stream;
      block.input_rows = want.input;
    }
    plan.blocks.push_back(block);
    stream = want.stream;
  };
  for (const BlockKind kind : attention) {
    add(kind);
    add(BlockKind::kFeedForward);
  }
  if (attn_cp > 1) plan.boundary_rows = boundary;
  plan.exit = Between({stream, PendingSum::kNone}, boundary, tp, attn_cp);
  plan.final_rows = Between({boundary, PendingSum::kNone}, Sharding::kFull, tp, attn_cp);
  return plan;
}

}  // namespace perigee::parallel
