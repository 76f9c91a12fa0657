#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace perigee::scheduler {
namespace {

using batch::BatchPlan;
using batch::Phase;
using ::testing::ElementsAre;

NewSequence Prompt(uint64_t id, int64_t tokens, int64_t max_new_tokens) {
  return {.id = id,
          .prompt = std::vector<int32_t>(static_cast<size_t>(tokens), 5),
          .max_new_tokens = max_new_tokens};
}

// Runs the next step with token 1 as every answer and returns its plan.
BatchPlan Step(Scheduler& scheduler) {
  std::optional<BatchPlan> plan = scheduler.Next();
  EXPECT_TRUE(plan.has_value());
  if (!plan) return {};
  scheduler.Commit(*plan, std::vector<SpanOutcome>(plan->spans.size(), SpanOutcome{.token = 1}));
  scheduler.CheckInvariants();
  return *plan;
}

std::vector<uint64_t> Members(const BatchPlan& plan) {
  std::vector<uint64_t> ids;
  for (const batch::PlannedSpan& span : plan.spans) ids.push_back(span.request);
  return ids;
}

std::vector<int64_t> Rows(const BatchPlan& plan) {
  std::vector<int64_t> rows;
  for (const batch::PlannedSpan& span : plan.spans) rows.push_back(static_cast<int64_t>(span.tokens.size()));
  return rows;
}

TEST(SchedulerTest, HasNothingToDoWhenEmpty) {
  Scheduler scheduler({.max_running = 2, .chunk_size = 64, .num_blocks = 4});
  EXPECT_FALSE(scheduler.Next().has_value());
}

TEST(SchedulerTest, SeveralPromptsShareAPrefillStepUpToTheBudget) {
  Scheduler scheduler({.max_running = 8, .chunk_size = 128, .num_blocks = 32});
  scheduler.Add(Prompt(1, 40, 4));
  scheduler.Add(Prompt(2, 10, 4));
  scheduler.Add(Prompt(3, 300, 4));
  const BatchPlan first = Step(scheduler);
  EXPECT_EQ(first.phase, Phase::kPrefill);
  EXPECT_THAT(Members(first), ElementsAre(1, 2, 3));
  EXPECT_THAT(Rows(first), ElementsAre(40, 10, 64)) << "the cut prompt ends on the grid of 64";
  EXPECT_TRUE(first.spans[0].sample);
  EXPECT_TRUE(first.spans[1].sample);
  EXPECT_FALSE(first.spans[2].sample);
}

TEST(SchedulerTest, PrefillAndDecodeAlternateWhileBothHaveWork) {
  Scheduler scheduler({.max_running = 8, .chunk_size = 64, .num_blocks = 32});
  scheduler.Add(Prompt(1, 10, 100));
  scheduler.Add(Prompt(2, 64 * 4, 2));
  std::vector<Phase> phases;
  for (int i = 0; i < 8; ++i) phases.push_back(Step(scheduler).phase);
  using enum Phase;
  // Request 1 alone fits the first step; the four chunks of request 2 come between its decode steps.
  EXPECT_THAT(phases,
              ElementsAre(kPrefill, kDecode, kPrefill, kDecode, kPrefill, kDecode, kPrefill, kDecode));
}

TEST(SchedulerTest, AShortNewcomerIsNotStuckBehindALongPrompt) {
  Scheduler scheduler({.max_running = 8, .chunk_size = 128, .num_blocks = 64});
  scheduler.Add(Prompt(1, 128 * 10, 4));
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1));
  scheduler.Add(Prompt(2, 128 * 8, 4));
  scheduler.Add(Prompt(3, 20, 1));
  const BatchPlan second = Step(scheduler);
  EXPECT_THAT(Members(second), ElementsAre(2, 3)) << "the shortest first, then the next";
  EXPECT_THAT(Rows(second), ElementsAre(64, 20));
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1)) << "the oldest has every other step";
}

TEST(SchedulerTest, AStreamOfShortPromptsDoesNotStarveALongOne) {
  Scheduler scheduler({.max_running = 8, .chunk_size = 128, .num_blocks = 64});
  scheduler.Add(Prompt(1, 128 * 10, 0));
  int64_t computed = 0;
  int steps = 0;
  for (uint64_t id = 2; computed < 128 * 10; ++id, ++steps) {
    scheduler.Add(Prompt(id, 128, 0));
    const BatchPlan plan = Step(scheduler);
    if (plan.spans[0].request == 1) computed += static_cast<int64_t>(plan.spans[0].tokens.size());
  }
  EXPECT_LE(steps, 20);
}

TEST(SchedulerTest, AStepTakesMorePromptsThanAPromptTakesRows) {
  Scheduler scheduler({.max_running = 8, .chunk_size = 64, .max_prefill_rows = 192, .num_blocks = 64});
  scheduler.Add(Prompt(1, 1000, 4));
  scheduler.Add(Prompt(2, 1000, 4));
  const BatchPlan plan = Step(scheduler);
  EXPECT_THAT(Rows(plan), ElementsAre(64, 64)) << "a chunk each";
}

TEST(SchedulerTest, WaitsForASlot) {
  Scheduler scheduler({.max_running = 1, .chunk_size = 64, .num_blocks = 32});
  scheduler.Add(Prompt(1, 5, 2));
  scheduler.Add(Prompt(2, 5, 2));
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1));
  EXPECT_EQ(scheduler.stats().running, 1);
  EXPECT_EQ(scheduler.stats().waiting, 1);
  EXPECT_EQ(Step(scheduler).phase, Phase::kDecode);
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(2));
}

TEST(SchedulerTest, AdmitsOnlyWithABlockToSpare) {
  Scheduler scheduler({.max_running = 4, .chunk_size = 64, .num_blocks = 2});
  scheduler.Add(Prompt(1, 64, 10));
  scheduler.Add(Prompt(2, 64, 10));
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1));
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1)) << "decode; takes its second block";
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1)) << "request 2 would leave no block over";
}

TEST(SchedulerTest, TheYoungestGivesWayAndResumes) {
  Scheduler scheduler({.max_running = 4, .chunk_size = 128, .num_blocks = 3});
  scheduler.Add(Prompt(1, 60, 100));
  scheduler.Add(Prompt(2, 60, 20));
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(1, 2));
  int steps = 0;
  while (scheduler.stats().preemptions == 0 && ++steps < 100) Step(scheduler);
  // Both need a second block at 64 tokens and one is left: the elder gets it and request 2 waits in place
  // with its 64 tokens, until the elder needs a third block at 128.
  EXPECT_EQ(steps, 69);
  EXPECT_EQ(scheduler.stats().running, 1);
  EXPECT_EQ(scheduler.stats().waiting, 1);
  int prefills = 0, decodes = 0, sampled = 0;
  while (const std::optional<BatchPlan> plan = scheduler.Next()) {
    for (const batch::PlannedSpan& span : plan->spans) {
      if (span.request != 2) continue;
      (plan->phase == Phase::kPrefill ? prefills : decodes) += 1;
      sampled += span.sample ? 1 : 0;
    }
    scheduler.Commit(*plan, std::vector<SpanOutcome>(plan->spans.size(), SpanOutcome{.token = 1}));
    scheduler.CheckInvariants();
  }
  // It had 5 of its 20 tokens: 60 prompt rows again, then tokens 1 to 19 by decode, of which 5 to 19 sample.
  EXPECT_EQ(prefills, 1);
  EXPECT_EQ(decodes, 19);
  EXPECT_EQ(sampled, 15);
  EXPECT_EQ(scheduler.stats().prompt_tokens, 120u) << "a prompt counts once";
  EXPECT_EQ(scheduler.stats().generated_tokens, 120u);
}

TEST(SchedulerTest, PromptOnlyRequestsEndWithTheirLastChunk) {
  Scheduler scheduler({.max_running = 4, .chunk_size = 64, .num_blocks = 8});
  scheduler.Add(Prompt(1, 65, 0));
  Step(scheduler);
  const std::optional<BatchPlan> plan = scheduler.Next();
  ASSERT_TRUE(plan.has_value());
  EXPECT_FALSE(plan->spans[0].sample);
  const std::vector<SequenceUpdate> updates = scheduler.Commit(*plan, std::vector<SpanOutcome>(1));
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_FALSE(updates[0].token.has_value());
  EXPECT_EQ(updates[0].finish, Finish::kLength);
  EXPECT_FALSE(scheduler.Next().has_value());
}

TEST(SchedulerTest, AFailedSpanEndsItsSequenceAlone) {
  Scheduler scheduler({.max_running = 4, .chunk_size = 64, .num_blocks = 8});
  scheduler.Add(Prompt(1, 3, 5));
  scheduler.Add(Prompt(2, 3, 5));
  const std::optional<BatchPlan> plan = scheduler.Next();
  const std::vector<SpanOutcome> outcomes = {{.token = -1, .failed = true}, {.token = 7}};
  const std::vector<SequenceUpdate> updates = scheduler.Commit(*plan, outcomes);
  scheduler.CheckInvariants();
  EXPECT_EQ(updates[0].finish, Finish::kFailed);
  EXPECT_FALSE(updates[0].token.has_value());
  EXPECT_EQ(updates[1].finish, Finish::kNone);
  EXPECT_THAT(Members(Step(scheduler)), ElementsAre(2));
}

TEST(SchedulerTest, CancelledRequestsAreNeverComputed) {
  Scheduler scheduler({.max_running = 1, .chunk_size = 64, .num_blocks = 8});
  for (uint64_t id = 1; id <= 10; ++id) scheduler.Add(Prompt(id, 7, 3));
  for (uint64_t id = 1; id <= 9; ++id) EXPECT_TRUE(scheduler.Cancel(id));
  EXPECT_FALSE(scheduler.Cancel(3));
  while (const std::optional<BatchPlan> plan = scheduler.Next()) {
    EXPECT_THAT(Members(*plan), ElementsAre(10));
    scheduler.Commit(*plan, std::vector<SpanOutcome>(1, SpanOutcome{.token = 1}));
  }
  EXPECT_EQ(scheduler.stats().prompt_tokens, 7u);
}

TEST(SchedulerTest, FitsCountsPromptAndAnswer) {
  const Scheduler scheduler({.max_running = 1, .chunk_size = 64, .num_blocks = 2});
  EXPECT_TRUE(scheduler.Fits(100, 28));
  EXPECT_FALSE(scheduler.Fits(100, 29));
  EXPECT_FALSE(scheduler.Fits(129, 0));
  EXPECT_FALSE(scheduler.Fits(1, INT64_MAX));
}

TEST(SchedulerDeathTest, CatchesMisuse) {
  Scheduler scheduler({.max_running = 1, .chunk_size = 64, .num_blocks = 2});
  EXPECT_DEATH(scheduler.Add(Prompt(1, 129, 0)), "Fits");
  scheduler.Add(Prompt(2, 10, 5));
  EXPECT_DEATH(scheduler.Add(Prompt(2, 10, 5)), "ascend");
  const std::optional<BatchPlan> plan = scheduler.Next();
  EXPECT_DEATH(scheduler.Next(), "not committed");
  EXPECT_DEATH(scheduler.Cancel(2), "middle of a step");
}

}  // namespace
}  // namespace perigee::scheduler
