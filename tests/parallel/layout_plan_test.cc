#include "parallel/layout_plan.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "parallel/stack_48b.h"

namespace perigee::parallel {
namespace {

using Lines = std::vector<std::string>;

constexpr StepMode kModes[] = {StepMode::kDecode, StepMode::kTp, StepMode::kHead, StepMode::kState,
                               StepMode::kReplicated};

// One line a boundary: the block's kind and what moves the stream, its input and its output.
Lines Describe(const LayoutPlan& plan) {
  Lines lines;
  lines.push_back(StrCat("entry: ", TransitionName(plan.embedding_output), " ", TransitionName(plan.entry)));
  for (const BlockTransitions& b : plan.blocks) {
    lines.push_back(StrCat(BlockKindName(b.kind), ": ", TransitionName(b.stream), " ",
                           TransitionName(b.input), " ", TransitionName(b.output)));
  }
  lines.push_back(StrCat("exit: ", TransitionName(plan.exit), " ", TransitionName(plan.final_rows)));
  return lines;
}

// Every kind of boundary: KDA first, between KDA layers, around MLA, KDA after MLA, MLA last.
LayoutPlan SmallPlan(StepMode mode, int tp, int attn_cp) {
  const std::vector<BlockKind> kinds = {BlockKind::kKda, BlockKind::kKda, BlockKind::kMla, BlockKind::kKda,
                                        BlockKind::kMla};
  return MakeLayoutPlan(mode, kinds, tp, attn_cp);
}

LayoutPlan Plan48B(StepMode mode, int tp, int attn_cp) {
  return MakeLayoutPlan(mode, test::Stack48B(), tp, attn_cp);
}

const Lines kAllReduceTable = {
    "entry: none none",
    "kda: none none all_reduce_tp",
    "feed_forward: none none all_reduce_tp",
    "kda: none none all_reduce_tp",
    "feed_forward: none none all_reduce_tp",
    "mla: none none all_reduce_tp",
    "feed_forward: none none all_reduce_tp",
    "kda: none none all_reduce_tp",
    "feed_forward: none none all_reduce_tp",
    "mla: none none all_reduce_tp",
    "feed_forward: none none all_reduce_tp",
    "exit: none none",
};

Lines HeadTable(const std::string& mla_output) {
  return {
      "entry: none slice",
      "kda: none all_gather reduce_scatter",
      "feed_forward: none all_gather reduce_scatter",
      "kda: none all_gather reduce_scatter",
      "feed_forward: none all_gather reduce_scatter",
      "mla: none none " + mla_output,
      "feed_forward: none all_gather reduce_scatter",
      "kda: none all_gather reduce_scatter",
      "feed_forward: none all_gather reduce_scatter",
      "mla: none none " + mla_output,
      "feed_forward: none all_gather reduce_scatter",
      "exit: none all_gather",
  };
}

Lines ReplicatedTable(const std::string& mla_output) {
  return {
      "entry: all_reduce_tp slice",
      "kda: all_gather none all_reduce_tp",
      "feed_forward: none none all_reduce_tp",
      "kda: none none all_reduce_tp",
      "feed_forward: none none all_reduce_tp",
      "mla: slice none " + mla_output,
      "feed_forward: all_gather none all_reduce_tp",
      "kda: none none all_reduce_tp",
      "feed_forward: none none all_reduce_tp",
      "mla: slice none " + mla_output,
      "feed_forward: all_gather none all_reduce_tp",
      "exit: slice all_gather",
  };
}

TEST(LayoutPlan, TpAndDecodeReduceOverAllRanksWhateverTheCpSize) {
  for (const StepMode mode : {StepMode::kDecode, StepMode::kTp}) {
    for (const auto& [tp, attn_cp] : {std::pair(2, 1), {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 4}}) {
      EXPECT_EQ(Describe(SmallPlan(mode, tp, attn_cp)), kAllReduceTable) << "tp " << tp << ", C " << attn_cp;
    }
  }
}

TEST(LayoutPlan, HeadMovesInputsAndScattersOutputs) {
  EXPECT_EQ(Describe(SmallPlan(StepMode::kHead, 4, 4)), HeadTable("none"));
  EXPECT_EQ(Describe(SmallPlan(StepMode::kHead, 2, 2)), HeadTable("none"));
  EXPECT_EQ(Describe(SmallPlan(StepMode::kHead, 8, 4)), HeadTable("all_reduce_attn_tp"));
  EXPECT_EQ(Describe(SmallPlan(StepMode::kHead, 4, 2)), HeadTable("all_reduce_attn_tp"));
}

// As the head mode, but KDA is what MLA is there.
TEST(LayoutPlan, StateKeepsRowsInAttention) {
  for (const auto& [tp, attn_cp] : {std::pair(2, 2), {4, 4}, {4, 2}, {8, 4}}) {
    Lines expected = HeadTable(tp == attn_cp ? "none" : "all_reduce_attn_tp");
    for (Lines::value_type& line : expected) {
      if (line.starts_with("kda")) {
        line = tp == attn_cp ? "kda: none none none" : "kda: none none all_reduce_attn_tp";
      }
    }
    EXPECT_EQ(Describe(SmallPlan(StepMode::kState, tp, attn_cp)), expected);
  }
}

TEST(LayoutPlan, ReplicatedIsTheSeedsTable) {
  EXPECT_EQ(Describe(SmallPlan(StepMode::kReplicated, 4, 4)), ReplicatedTable("none"));
  EXPECT_EQ(Describe(SmallPlan(StepMode::kReplicated, 8, 4)), ReplicatedTable("all_reduce_attn_tp"));
}

TEST(LayoutPlan, OneRankMovesNothingInAnyMode) {
  for (const StepMode mode : kModes) {
    const LayoutPlan plan = Plan48B(mode, 1, 1);
    EXPECT_EQ(plan.mode, mode);
    EXPECT_FALSE(plan.embedding_by_share);
    EXPECT_EQ(plan.boundary_rows, Sharding::kFull);
    const Lines lines = Describe(plan);
    EXPECT_EQ(lines.front(), "entry: none none");
    EXPECT_EQ(lines.back(), "exit: none none");
    ASSERT_EQ(plan.blocks.size(), 2 * test::kLayers48B);
    for (const BlockTransitions& block : plan.blocks) {
      EXPECT_EQ(block, BlockTransitions{.kind = block.kind}) << BlockKindName(block.kind);
    }
  }
}

TEST(LayoutPlan, BlocksFollowTheStack) {
  const std::vector<BlockKind> kinds = test::Stack48B();
  for (const StepMode mode : kModes) {
    const LayoutPlan plan = Plan48B(mode, 4, 4);
    ASSERT_EQ(plan.blocks.size(), 2 * kinds.size());
    for (size_t l = 0; l < kinds.size(); ++l) {
      EXPECT_EQ(plan.blocks[2 * l].kind, kinds[l]);
      EXPECT_EQ(plan.blocks[2 * l + 1].kind, BlockKind::kFeedForward);
    }
  }
}

// The seed's checks of its layer communicator, on the table.
TEST(LayoutPlan, ReplicatedGathersOnceForTheFirstKdaAndAroundMlaOnly) {
  const LayoutPlan plan = Plan48B(StepMode::kReplicated, 4, 4);
  EXPECT_TRUE(plan.embedding_by_share);
  EXPECT_EQ(plan.embedding_output, Transition::kAllReduceTp);
  EXPECT_EQ(plan.entry, Transition::kSlice);
  for (size_t l = 0; l < test::kLayers48B; ++l) {
    const BlockTransitions& attention = plan.blocks[2 * l];
    const BlockTransitions& mlp = plan.blocks[2 * l + 1];
    SCOPED_TRACE(l);
    if (attention.kind == BlockKind::kMla) {
      EXPECT_EQ(attention.stream, Transition::kSlice);
      EXPECT_EQ(mlp.stream, Transition::kAllGather);
      EXPECT_EQ(attention.input_rows, Sharding::kCp);
    } else {
      EXPECT_EQ(attention.stream, l == 0 ? Transition::kAllGather : Transition::kNone);
      EXPECT_EQ(mlp.stream, Transition::kNone);
      EXPECT_EQ(attention.input_rows, Sharding::kFull);
    }
    EXPECT_EQ(attention.input, Transition::kNone);
    EXPECT_EQ(mlp.input, Transition::kNone);
    EXPECT_EQ(mlp.stream_rows, Sharding::kFull);
  }
  EXPECT_EQ(plan.exit, Transition::kSlice);
  EXPECT_EQ(plan.boundary_rows, Sharding::kCp);
  EXPECT_EQ(plan.final_rows, Transition::kAllGather);
}

bool Reduces(Transition t) {
  return t == Transition::kAllReduceTp || t == Transition::kAllReduceAttnTp ||
         t == Transition::kReduceScatter;
}

TEST(LayoutPlan, EveryKdaAndFeedForwardOutputIsReducedExactlyOnce) {
  for (const StepMode mode : kModes) {
    for (const auto& [tp, attn_cp] : {std::pair(2, 2), {4, 1}, {4, 2}, {4, 4}, {8, 4}}) {
      if (attn_cp == 1 && mode != StepMode::kDecode && mode != StepMode::kTp) continue;
      const LayoutPlan plan = Plan48B(mode, tp, attn_cp);
      for (const BlockTransitions& block : plan.blocks) {
        SCOPED_TRACE(StrCat("tp ", tp, ", C ", attn_cp, ", ", batch::StepModeName(mode), ", ",
                            BlockKindName(block.kind)));
        EXPECT_FALSE(Reduces(block.stream));
        EXPECT_FALSE(Reduces(block.input));
        const bool whole =
            block.kind != BlockKind::kFeedForward && block.input_rows == Sharding::kCp && tp == attn_cp;
        EXPECT_EQ(Reduces(block.output), !whole);
      }
    }
  }
}

TEST(LayoutPlan, HeadKeepsTheStreamShardedFromEndToEnd) {
  const LayoutPlan plan = Plan48B(StepMode::kHead, 4, 4);
  EXPECT_FALSE(plan.embedding_by_share);
  EXPECT_EQ(plan.boundary_rows, Sharding::kCp);
  for (const BlockTransitions& block : plan.blocks) {
    EXPECT_EQ(block.stream, Transition::kNone);
    EXPECT_EQ(block.stream_rows, Sharding::kCp);
    const bool own_rows = block.kind == BlockKind::kMla;
    EXPECT_EQ(block.input_rows, own_rows ? Sharding::kCp : Sharding::kFull);
    EXPECT_EQ(block.input, own_rows ? Transition::kNone : Transition::kAllGather);
    EXPECT_EQ(block.output, own_rows ? Transition::kNone : Transition::kReduceScatter);
  }
  EXPECT_EQ(plan.exit, Transition::kNone);
}

TEST(LayoutPlan, NothingIsShardedInTheTpAndDecodeModes) {
  for (const StepMode mode : {StepMode::kDecode, StepMode::kTp}) {
    const LayoutPlan with_cp = Plan48B(mode, 4, 4);
    const LayoutPlan without = Plan48B(mode, 4, 1);
    EXPECT_EQ(with_cp.blocks, without.blocks);
    EXPECT_EQ(Describe(with_cp), Describe(without));
    EXPECT_EQ(with_cp.boundary_rows, Sharding::kFull);
    EXPECT_FALSE(with_cp.embedding_by_share);
    for (const BlockTransitions& block : with_cp.blocks) {
      EXPECT_EQ(block.stream_rows, Sharding::kFull);
      EXPECT_EQ(block.input_rows, Sharding::kFull);
    }
  }
}

}  // namespace
}  // namespace perigee::parallel
