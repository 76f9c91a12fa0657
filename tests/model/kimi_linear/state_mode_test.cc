// KDA whose ranks keep to their own rows: close to one rank, whatever the ranks, the strategy and the batch,
// and equal to itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "testing/model_harness.h"

namespace perigee::testing {
namespace {

using Sequence = ModelHarness::Sequence;
using Ranks = ModelHarness::Ranks;
using batch::StepMode;

// The bound of the design, in log-probability.
constexpr double kClose = 5e-4;

std::string Tiny() {
  return std::string(PERIGEE_MODELS) + "/tiny-kimi-linear";
}
std::string Random(const std::string& name) {
  return std::string(PERIGEE_TEST_DATA) + "/random/" + name;
}

std::string NameOf(const Ranks& r) {
  return "tp" + std::to_string(r.tp) + "_cp" + std::to_string(r.attn_cp) + "_ep" + std::to_string(r.ep) +
         (r.strategy == parallel::Contiguous ? "_contiguous" : "_zigzag");
}

// Every C over 2, 4 .. max_tp ranks, with both strategies.
std::vector<Ranks> Spreads(int max_tp) {
  std::vector<Ranks> spreads;
  for (int tp = 2; tp <= max_tp; tp *= 2) {
    for (int cp = 2; cp <= tp; cp *= 2) {
      for (const parallel::CpStrategy strategy : {parallel::Zigzag, parallel::Contiguous}) {
        spreads.push_back({.tp = tp, .attn_cp = cp, .prefill_mode = StepMode::kState, .strategy = strategy});
      }
    }
  }
  return spreads;
}

std::vector<int32_t> Ids(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  uint64_t x = seed;
  for (int64_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// Ragged lengths, from such that one rank owns whole; whole, in aligned and in other pieces (so with
// prefixes), and decode rows that go on from what the ranks kept.
std::vector<Sequence> Batch(int64_t vocab) {
  std::vector<Sequence> batch;
  for (const auto& [length, piece, decode] : std::vector<std::tuple<int, int, int>>{{1, 0, 0},
                                                                                    {3, 0, 1},
                                                                                    {17, 0, 2},
                                                                                    {65, 64, 1},
                                                                                    {130, 64, 2},
                                                                                    {131, 50, 3},
                                                                                    {200, 7, 4},
                                                                                    {230, 0, 5}}) {
    batch.push_back({Ids(length, vocab, static_cast<uint64_t>(length)), piece, decode});
  }
  return batch;
}

double Worst(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b,
             int64_t vocab) {
  double worst = 0;
  for (size_t s = 0; s < a.size(); ++s) {
    EXPECT_EQ(a[s].size(), b[s].size());
    worst = std::max(worst, WorstLogProbDifference(a[s], b[s], vocab));
  }
  return worst;
}

void ExpectClose(const std::string& folder, const std::vector<Ranks>& spreads) {
  ModelHarness one(folder, 2);
  const std::vector<Sequence> batch = Batch(one.vocab_size());
  const auto expected = one.Run(batch);
  double worst = 0;
  for (const Ranks& r : spreads) {
    const double difference = Worst(ModelHarness(folder, 1, r).Run(batch), expected, one.vocab_size());
    EXPECT_LE(difference, kClose) << folder << " " << NameOf(r);
    worst = std::max(worst, difference);
  }
  ::testing::Test::RecordProperty("worst", std::to_string(worst));
  std::printf("%s: worst log-probability difference %.3g\n", folder.c_str(), worst);
}

TEST(StateMode, TinyModelComesClose) {
  ExpectClose(Tiny(), Spreads(4));
}

TEST(StateMode, EightHeadsComeCloseOnUpToEightRanks) {
  ExpectClose(Random("eight_heads"), Spreads(8));
}

// Decays to exp(-1000) and below, widths that are no multiple of a vector, rank counts that are no power of
// two.
TEST(StateMode, OtherModelsComeClose) {
  ExpectClose(Random("six_heads"),
              {{.tp = 3, .attn_cp = 3, .prefill_mode = StepMode::kState},
               {.tp = 6, .attn_cp = 3, .prefill_mode = StepMode::kState, .strategy = parallel::Contiguous},
               {.tp = 6, .attn_cp = 6, .ep = 2, .prefill_mode = StepMode::kState},
               {.tp = 2, .attn_cp = 2, .prefill_mode = StepMode::kState}});
}

TEST(StateMode, ResultsRepeatBitForBit) {
  for (const Ranks& r : {Spreads(8)[5], Spreads(8)[8], Spreads(8)[11]}) {
    ModelHarness harness(Random("eight_heads"), 1, r);
    const std::vector<Sequence> batch = Batch(harness.vocab_size());
    const auto once = harness.Run(batch);
    EXPECT_TRUE(harness.Run(batch) == once) << NameOf(r);
    EXPECT_TRUE(ModelHarness(Random("eight_heads"), 3, r).Run(batch) == once) << NameOf(r);
  }
}

void ExpectSameStates(const std::vector<float>& actual, const std::vector<float>& expected, double of_max) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    worst = std::max(worst, std::abs(double{actual[i]} - expected[i]));
  }
  EXPECT_LE(worst, of_max * largest) << worst << " of " << largest;
}

// Each rank keeps what it keeps in the head mode.
TEST(StateMode, StatesAndTailsAreThoseOfTheHeadMode) {
  for (const auto& [folder, spreads] :
       {std::pair(Random("eight_heads"), Spreads(8)), {Tiny(), {Spreads(4)[3], Spreads(4)[4]}}}) {
    for (Ranks r : spreads) {
      ModelHarness state(folder, 1, r);
      const std::vector<Sequence> batch = Batch(state.vocab_size());
      state.Run(batch);
      r.prefill_mode = StepMode::kHead;
      ModelHarness head(folder, 1, r);
      head.Run(batch);
      const auto actual = state.LastStates(), expected = head.LastStates();
      ASSERT_EQ(actual.size(), batch.size());
      for (size_t s = 0; s < batch.size(); ++s) {
        SCOPED_TRACE(folder + " " + NameOf(r) + ", " + std::to_string(batch[s].ids.size()) + " tokens");
        ExpectSameStates(actual[s].recurrent, expected[s].recurrent, 2e-5);
        ExpectSameStates(actual[s].conv, expected[s].conv, 2e-5);
      }
    }
  }
}

// States that a step is asked for inside its spans are those of a prompt that ends there.
TEST(StateMode, SnapshotsAreTheStatesOfShorterPrompts) {
  const std::string folder = Random("eight_heads");
  for (Ranks r : Spreads(4)) {
    ModelHarness state(folder, 1, r);
    const std::vector<int32_t> ids = Ids(230, state.vocab_size(), 61),
                               other = Ids(90, state.vocab_size(), 62);
    // In one chunk, and after a prefix; at the end of a chunk too.
    const std::vector<Sequence> batch = {
        {ids, 0, 0, {64, 192}}, {other, 0, 0, {}}, {ids, 128, 1, {128, 192}}};
    const auto logits = state.Run(batch);
    const auto actual = state.LastSnapshots();
    ASSERT_EQ(actual.size(), 4u);
    r.prefill_mode = StepMode::kHead;
    ModelHarness head(folder, 1, r);
    const auto upto = [&](int64_t tokens) { return Sequence{{ids.begin(), ids.begin() + tokens}, 0, 0}; };
    head.Run({upto(64), upto(128), upto(192)});
    const auto expected = head.LastStates();
    for (const auto& [i, e] : {std::pair<size_t, size_t>(0, 0), {1, 2}, {2, 1}, {3, 2}}) {
      SCOPED_TRACE(NameOf(r) + ", snapshot " + std::to_string(i));
      ExpectSameStates(actual[i].recurrent, expected[e].recurrent, 2e-5);
      ExpectSameStates(actual[i].conv, expected[e].conv, 2e-5);
    }
    EXPECT_LE(Worst({logits[0]}, head.Run({{ids, 0, 0}}), head.vocab_size()), kClose);
  }
}

// Every length from 1 to 200, eight prompts a step, in pieces of 64.
TEST(StateModeLarge, EveryLengthComesClose) {
  const std::string folder = Random("eight_heads");
  ModelHarness one(folder, 2);
  std::vector<std::unique_ptr<ModelHarness>> spread;
  for (const Ranks& r : Spreads(8)) spread.push_back(std::make_unique<ModelHarness>(folder, 1, r));
  double worst = 0;
  for (int64_t first = 1; first <= 200; first += 8) {
    std::vector<Sequence> batch;
    for (int64_t s = 0; s < 8; ++s) {
      batch.push_back({Ids(first + s, one.vocab_size(), static_cast<uint64_t>(first + s)), 64, 0});
    }
    const auto expected = one.Run(batch);
    for (size_t i = 0; i < spread.size(); ++i) {
      const double difference = Worst(spread[i]->Run(batch), expected, one.vocab_size());
      EXPECT_LE(difference, kClose) << NameOf(Spreads(8)[i]) << ", lengths from " << first;
      worst = std::max(worst, difference);
    }
  }
  std::printf("every length: worst log-probability difference %.3g\n", worst);
}

// 16,384 tokens in chunks of 8192 and of an odd length.
TEST(StateModeLarge, ALongPromptComesClose) {
  constexpr int64_t kTokens = 16384;
  ModelHarness one(Tiny(), 2, 1, kTokens + 64);
  Sequence prompt{Ids(kTokens, 1790, 9), 8192, 4};
  const auto expected = one.RunSampled({prompt});
  for (const auto& [piece, strategy] : std::vector<std::pair<int64_t, parallel::CpStrategy>>{
           {8192, parallel::Zigzag}, {5001, parallel::Contiguous}}) {
    prompt.piece = piece;
    const Ranks r{.tp = 4, .attn_cp = 4, .prefill_mode = StepMode::kState, .strategy = strategy};
    const double difference =
        Worst(ModelHarness(Tiny(), 1, r, 1, kTokens + 64).RunSampled({prompt}), expected, one.vocab_size());
    EXPECT_LE(difference, kClose) << NameOf(r) << ", chunks of " << piece;
    std::printf("%s, chunks of %d: %.3g\n", NameOf(r).c_str(), static_cast<int>(piece), difference);
  }
}

}  // namespace
}  // namespace perigee::testing
