#include "scheduler/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SequenceTest, SamplesOnlyAtItsLastKnownToken) {
  Sequence s({.id = 1, .prompt = {10, 11, 12}, .max_new_tokens = 3});
  EXPECT_FALSE(s.PlanRows(2).sample);
  EXPECT_TRUE(s.PlanRows(2).fresh_state);
  EXPECT_TRUE(s.PlanRows(3).sample);
  s.Advance(3);
  EXPECT_FALSE(s.in_prefill());
  EXPECT_EQ(s.Append(13), Finish::kNone);
  const batch::PlannedSpan span = s.PlanRows(1);
  EXPECT_THAT(span.tokens, ElementsAre(13));
  EXPECT_EQ(span.prefix, 3);
  EXPECT_FALSE(span.fresh_state);
  EXPECT_TRUE(span.sample);
}

TEST(SequenceTest, ReplaysGeneratedTokensAfterARestart) {
  Sequence s({.id = 1, .prompt = {10, 11}, .max_new_tokens = 5, .prompt_logprobs = true});
  s.Advance(2);
  s.Append(20);
  s.Advance(1);
  s.Append(21);
  s.Restart();
  EXPECT_TRUE(s.in_prefill());
  EXPECT_TRUE(s.PlanRows(2).fresh_state);
  EXPECT_FALSE(s.PlanRows(2).sample) << "its successor is known";
  EXPECT_FALSE(s.PlanRows(2).prompt_logprobs) << "delivered before";
  s.Advance(2);
  EXPECT_THAT(s.PlanRows(1).tokens, ElementsAre(20));
  EXPECT_FALSE(s.PlanRows(1).sample);
  s.Advance(1);
  EXPECT_THAT(s.PlanRows(1).tokens, ElementsAre(21));
  EXPECT_TRUE(s.PlanRows(1).sample);
  EXPECT_EQ(s.num_generated(), 2);
}

TEST(SequenceTest, StopIdsAndLengthEndIt) {
  Sequence s({.id = 1, .prompt = {1}, .max_new_tokens = 3, .stop_ids = {9, 4}});
  EXPECT_EQ(s.Append(5), Finish::kNone);
  EXPECT_EQ(s.Append(4), Finish::kStop);
  Sequence last({.id = 2, .prompt = {1}, .max_new_tokens = 2, .stop_ids = {9, 4}});
  EXPECT_EQ(last.Append(5), Finish::kNone);
  EXPECT_EQ(last.Append(9), Finish::kStop) << "a stop id wins over the length";
  Sequence length({.id = 3, .prompt = {1}, .max_new_tokens = 1});
  EXPECT_EQ(length.Append(5), Finish::kLength);
}

TEST(SequenceTest, PromptOnlySequencesSampleNothing) {
  Sequence s({.id = 1, .prompt = {1, 2}, .max_new_tokens = 0});
  EXPECT_FALSE(s.PlanRows(2).sample);
}

TEST(SequenceTest, TargetsAreTheSuccessorsAcrossChunks) {
  Sequence s({.id = 1, .prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 1, .prompt_logprobs = true});
  EXPECT_THAT(s.PlanRows(2).targets, ElementsAre(2, 3));
  s.Advance(2);
  EXPECT_THAT(s.PlanRows(3).targets, ElementsAre(4, 5));
  s.Advance(2);
  EXPECT_TRUE(s.PlanRows(1).prompt_logprobs);
  EXPECT_THAT(s.PlanRows(1).targets, IsEmpty());
  s.Advance(1);
  s.Append(6);
  EXPECT_FALSE(s.PlanRows(1).prompt_logprobs);
}

}  // namespace
}  // namespace perigee::scheduler
