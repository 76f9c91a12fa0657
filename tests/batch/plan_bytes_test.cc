#include "batch/plan_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "batch/forward_batch.h"
#include "testing/random.h"

namespace perigee::batch {
namespace {

using test::Random;

constexpr PlanLimits kLimits{
    .vocab_size = 1000, .num_blocks = 64, .num_slots = 8, .block_tokens = 4, .max_rows = 1000};

std::vector<int32_t> Ids(Random& random, int64_t count, int64_t limit) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(limit));
  return ids;
}

PlannedSpan AnySpan(Random& random, Phase phase) {
  PlannedSpan span;
  const int64_t rows = phase == Phase::kDecode ? 1 : 1 + random.Below(60);
  span.request = static_cast<uint64_t>(random.Below(1'000'000'000)) << 20;
  span.tokens = Ids(random, rows, kLimits.vocab_size);
  span.prefix = random.Below(3) == 0 ? 0 : random.Below(100);
  span.fresh_state = span.prefix == 0;
  span.state_slot = static_cast<int32_t>(random.Below(kLimits.num_slots));
  // Any but its own.
  const auto other_slot = [&] {
    const int64_t step = 1 + random.Below(kLimits.num_slots - 1);
    return static_cast<int32_t>((span.state_slot + step) % kLimits.num_slots);
  };
  if (!span.fresh_state && random.Below(2) == 0) span.restore_from = other_slot();
  if (random.Below(2) == 0) span.save_to = other_slot();
  span.block_table = Ids(random, (span.prefix + rows + 3) / 4 + random.Below(3), kLimits.num_blocks);
  span.sample = random.Below(2) == 0;
  span.prompt_logprobs = random.Below(2) == 0;
  if (span.prompt_logprobs) span.targets = Ids(random, rows - random.Below(2), kLimits.vocab_size);
  return span;
}

BatchPlan AnyPlan(Random& random) {
  BatchPlan plan;
  plan.phase = random.Below(2) == 0 ? Phase::kPrefill : Phase::kDecode;
  plan.mode = plan.phase == Phase::kDecode
                  ? StepMode::kDecode
                  : std::vector{StepMode::kTp, StepMode::kHead,
                                StepMode::kReplicated}[static_cast<size_t>(random.Below(3))];
  for (int64_t s = 1 + random.Below(6); s > 0; --s) plan.spans.push_back(AnySpan(random, plan.phase));
  plan.freed_blocks = Ids(random, random.Below(4), kLimits.num_blocks);
  plan.freed_slots = Ids(random, random.Below(4), kLimits.num_slots);
  return plan;
}

void ExpectSame(const BatchPlan& a, const BatchPlan& b) {
  EXPECT_EQ(a.phase, b.phase);
  EXPECT_EQ(a.mode, b.mode);
  EXPECT_EQ(a.freed_blocks, b.freed_blocks);
  EXPECT_EQ(a.freed_slots, b.freed_slots);
  ASSERT_EQ(a.spans.size(), b.spans.size());
  for (size_t s = 0; s < a.spans.size(); ++s) {
    const PlannedSpan &x = a.spans[s], &y = b.spans[s];
    EXPECT_EQ(x.request, y.request);
    EXPECT_EQ(x.tokens, y.tokens);
    EXPECT_EQ(x.prefix, y.prefix);
    EXPECT_EQ(x.state_slot, y.state_slot);
    EXPECT_EQ(x.fresh_state, y.fresh_state);
    EXPECT_EQ(x.restore_from, y.restore_from);
    EXPECT_EQ(x.save_to, y.save_to);
    EXPECT_EQ(x.block_table, y.block_table);
    EXPECT_EQ(x.sample, y.sample);
    EXPECT_EQ(x.prompt_logprobs, y.prompt_logprobs);
    EXPECT_EQ(x.targets, y.targets);
  }
}

TEST(PlanBytes, AnyPlanComesBackAsItWas) {
  Random random(1);
  for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) {
    const BatchPlan plan = AnyPlan(random);
    const auto back = DecodePlan(EncodePlan(plan), kLimits);
    ASSERT_TRUE(back.ok()) << back.status().message();
    ExpectSame(*back, plan);
  }
}

TEST(PlanBytes, EveryCutIsRefused) {
  Random random(2);
  const std::vector<std::byte> bytes = EncodePlan(AnyPlan(random));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodePlan(std::span<const std::byte>(bytes).first(size), kLimits).ok())
        << size << " of " << bytes.size();
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodePlan(longer, kLimits).ok());
}

// A changed byte gives an error or a plan that can be run.
TEST(PlanBytes, NoChangedByteDoesHarm) {
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = EncodePlan(AnyPlan(random));
    bytes[static_cast<size_t>(random.Below(static_cast<int64_t>(bytes.size())))] =
        static_cast<std::byte>(random.Below(256));
    if (const auto plan = DecodePlan(bytes, kLimits); plan.ok()) (void)MakeForwardBatch(*plan);
  }
}

TEST(PlanBytes, OtherBuildsAreRefused) {
  Random random(4);
  std::vector<std::byte> bytes = EncodePlan(AnyPlan(random));
  bytes[0] = std::byte{77};
  EXPECT_EQ(DecodePlan(bytes, kLimits).status().message(),
            "a step's plan has the form 77, this program knows 2: the ranks are different builds");
}

TEST(PlanBytes, ErrorsSayWhichSpanAndWhichValue) {
  BatchPlan plan;
  plan.mode = StepMode::kHead;
  PlannedSpan good;
  good.tokens = {1, 2, 3};
  good.fresh_state = true;
  good.block_table = {5};
  plan.spans = {good, good};
  ASSERT_TRUE(DecodePlan(EncodePlan(plan), kLimits).ok());
  const auto error = [&](const std::function<void(PlannedSpan&)>& spoil) {
    BatchPlan bad = plan;
    spoil(bad.spans[1]);
    return DecodePlan(EncodePlan(bad), kLimits).status().message();
  };
  const std::string at = "a step's plan, span 1: ";
  EXPECT_EQ(error([](auto& s) { s.tokens[2] = 1000; }), at + "token 1000, which is not from 0 to 999");
  EXPECT_EQ(error([](auto& s) { s.tokens[2] = -1; }), at + "token -1, which is not from 0 to 999");
  EXPECT_EQ(error([](auto& s) { s.tokens.clear(); }), at + "0 rows");
  EXPECT_EQ(error([](auto& s) { s.block_table[0] = 64; }), at + "block 64, which is not from 0 to 63");
  EXPECT_EQ(error([](auto& s) { s.block_table.clear(); }), at + "0 blocks for 3 tokens");
  EXPECT_EQ(error([](auto& s) { s.state_slot = 8; }), at + "state slot 8, which is not from 0 to 7");
  EXPECT_EQ(error([](auto& s) { s.prefix = -4; }), at + "prefix -4, which is not from 0 to 256");
  EXPECT_EQ(error([](auto& s) { s.fresh_state = false; }), at + "fresh state false at prefix 0");
  EXPECT_EQ(error([](auto& s) { s.save_to = 8; }), at + "saved to slot 8, which is not from 0 to 7");
  EXPECT_EQ(error([](auto& s) { s.save_to = 0; }), at + "saved to slot 0, its own slot");
  EXPECT_EQ(error([](auto& s) { s.restore_from = -2; }),
            at + "restored from slot -2, which is not from 0 to 7");
  EXPECT_EQ(error([](auto& s) { s.restore_from = 1; }), at + "restored from slot 1 and fresh");
  EXPECT_EQ(error([](auto& s) { s.targets = {1}; }), at + "1 targets for 3 rows");
  plan.mode = StepMode::kDecode;
  EXPECT_EQ(DecodePlan(EncodePlan(plan), kLimits).status().message(), "a step's plan has phase 0 and mode 0");
}

}  // namespace
}  // namespace perigee::batch
