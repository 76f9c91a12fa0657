#include "batch/forward_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace perigee::batch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

PlannedSpan Span(std::vector<int32_t> tokens, int64_t prefix, int32_t slot, std::vector<int32_t> blocks) {
  PlannedSpan span;
  span.tokens = std::move(tokens);
  span.prefix = prefix;
  span.state_slot = slot;
  span.fresh_state = prefix == 0;
  span.block_table = std::move(blocks);
  return span;
}

TEST(ForwardBatchTest, FlattensSpansInOrder) {
  BatchPlan plan;
  plan.spans = {Span({7, 8, 9}, 0, 4, {2}), Span({1}, 64, 0, {5, 3})};
  const ForwardBatch batch = MakeForwardBatch(plan);

  EXPECT_THAT(batch.token_ids, ElementsAre(7, 8, 9, 1));
  ASSERT_EQ(batch.spans.size(), 2u);
  EXPECT_EQ(batch.spans[0].q_begin, 0);
  EXPECT_EQ(batch.spans[0].q_len, 3);
  EXPECT_EQ(batch.spans[0].kv_len, 3);
  EXPECT_EQ(batch.spans[1].seq, 1);
  EXPECT_EQ(batch.spans[1].q_begin, 3);
  EXPECT_EQ(batch.spans[1].kv_len, 65);
  EXPECT_EQ(batch.spans[1].prefix(), 64);
  EXPECT_THAT(batch.state_slots, ElementsAre(4, 0));
  EXPECT_THAT(batch.BlockTable(0), ElementsAre(2));
  EXPECT_THAT(batch.BlockTable(1), ElementsAre(5, 3));
  EXPECT_THAT(batch.wanted_rows, IsEmpty());
}

TEST(ForwardBatchTest, WantedRowsAreSampledLastRowsAndAllRowsOfPromptLogprobs) {
  BatchPlan plan;
  plan.spans = {Span({1, 2}, 0, 0, {0}), Span({3, 4, 5}, 0, 1, {1}), Span({6, 7}, 0, 2, {2})};
  plan.spans[0].sample = true;
  plan.spans[1].prompt_logprobs = true;
  plan.spans[1].targets = {4, 5};
  EXPECT_THAT(MakeForwardBatch(plan).wanted_rows, ElementsAre(1, 2, 3, 4));

  plan.spans[1].sample = true;
  EXPECT_THAT(MakeForwardBatch(plan).wanted_rows, ElementsAre(1, 2, 3, 4));
}

TEST(ForwardBatchTest, KeepsThePhase) {
  BatchPlan plan;
  plan.phase = Phase::kDecode;
  plan.spans = {Span({3}, 10, 0, {0})};
  EXPECT_EQ(MakeForwardBatch(plan).phase, Phase::kDecode);
}

TEST(ForwardBatchDeathTest, RefusesPlansThatBreakTheContract) {
  BatchPlan decode;
  decode.phase = Phase::kDecode;
  decode.spans = {Span({3, 4}, 10, 0, {0})};
  EXPECT_DEATH(MakeForwardBatch(decode), "one row");

  BatchPlan stale;
  stale.spans = {Span({3}, 0, 0, {0})};
  stale.spans[0].fresh_state = false;
  EXPECT_DEATH(MakeForwardBatch(stale), "fresh");
}

}  // namespace
}  // namespace perigee::batch
