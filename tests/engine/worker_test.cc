#include "engine/worker.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "testing/fake_model.h"

namespace perigee::engine {
namespace {

Worker MakeWorker(int threads = 1) {
  return Worker(std::make_unique<FakeModel>(), {.num_blocks = 8, .num_slots = 4, .threads = threads});
}

batch::PlannedSpan Span(RequestId id, std::vector<int32_t> tokens, int64_t prefix, int32_t slot,
                        std::vector<int32_t> blocks) {
  batch::PlannedSpan span;
  span.request = id;
  span.tokens = std::move(tokens);
  span.prefix = prefix;
  span.state_slot = slot;
  span.fresh_state = prefix == 0;
  span.block_table = std::move(blocks);
  span.sample = true;
  return span;
}

std::unique_ptr<Sampler> MakeSampler(std::vector<RequestId> ids, size_t prompt_size) {
  auto sampler = std::make_unique<Sampler>(1);
  for (const RequestId id : ids) {
    sampler->Add(id, {.prompt = std::vector<TokenId>(prompt_size, 0),
                      .sampling = {.temperature = 0, .logprobs = true}});
  }
  return sampler;
}

TEST(WorkerTest, RanksInOneProcessDoNotShareAnything) {
  const std::unique_ptr<Sampler> sampler = MakeSampler({1, 2}, 3);
  batch::BatchPlan mine, other;
  mine.spans = {Span(1, {4, 5, 6}, 0, 0, {3})};
  other.spans = {Span(2, {9, 9, 9}, 0, 0, {3})};
  batch::BatchPlan next;
  next.phase = batch::Phase::kDecode;
  next.spans = {Span(1, {8}, 3, 0, {3})};

  Worker alone = MakeWorker();
  ASSERT_TRUE(alone.Run(mine, sampler.get()).ok());
  const std::vector<SpanResult> expected = alone.Run(next, sampler.get()).value();

  Worker a = MakeWorker(), b = MakeWorker(3);
  ASSERT_TRUE(a.Run(mine, sampler.get()).ok());
  ASSERT_TRUE(b.Run(other, sampler.get()).ok());
  const std::vector<SpanResult> seen = a.Run(next, sampler.get()).value();
  EXPECT_EQ(seen[0].token.id, expected[0].token.id);
  EXPECT_EQ(seen[0].token.logprob, expected[0].token.logprob);
  ASSERT_TRUE(b.Run(mine, sampler.get()).ok());
  EXPECT_EQ(b.Run(next, sampler.get()).value()[0].token.logprob, expected[0].token.logprob)
      << "stale slot or block";
}

TEST(WorkerTest, NeighboursInTheStepChangeNothing) {
  const std::unique_ptr<Sampler> sampler = MakeSampler({1, 2, 3}, 2);
  batch::BatchPlan together, single;
  together.spans = {Span(1, {1, 2}, 0, 2, {0}), Span(2, {3, 4}, 0, 0, {5}), Span(3, {5, 6}, 0, 1, {1})};
  single.spans = {Span(2, {3, 4}, 0, 3, {7})};
  const std::vector<SpanResult> many = MakeWorker(2).Run(together, sampler.get()).value();
  const std::vector<SpanResult> one = MakeWorker().Run(single, sampler.get()).value();
  ASSERT_EQ(many.size(), 3u);
  EXPECT_EQ(many[1].token.id, one[0].token.id);
  EXPECT_EQ(many[1].token.logprob, one[0].token.logprob);
  EXPECT_NE(many[0].token.logprob, one[0].token.logprob);
}

TEST(WorkerTest, UntouchedSlotsKeepTheirState) {
  const std::unique_ptr<Sampler> sampler = MakeSampler({1, 2}, 2);
  batch::BatchPlan first, second;
  first.spans = {Span(1, {1, 2}, 0, 0, {0}), Span(2, {3, 4}, 0, 1, {1})};
  second.phase = batch::Phase::kDecode;
  second.spans = {Span(2, {5}, 2, 1, {1})};
  batch::BatchPlan third;
  third.phase = batch::Phase::kDecode;
  third.spans = {Span(1, {6}, 2, 0, {0})};

  Worker worker = MakeWorker();
  ASSERT_TRUE(worker.Run(first, sampler.get()).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(worker.Run(second, sampler.get()).ok());
    second.spans[0].prefix += 1;
  }
  const std::vector<SpanResult> late = worker.Run(third, sampler.get()).value();
  Worker fresh = MakeWorker();
  ASSERT_TRUE(fresh.Run(first, sampler.get()).ok());
  EXPECT_EQ(late[0].token.logprob, fresh.Run(third, sampler.get()).value()[0].token.logprob);
}

}  // namespace
}  // namespace perigee::engine
