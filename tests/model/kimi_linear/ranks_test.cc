// One model, however it is spread over ranks: the same bits as one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "testing/model_harness.h"

namespace perigee::testing {
namespace {

using Sequence = ModelHarness::Sequence;
using Ranks = ModelHarness::Ranks;
using batch::StepMode;

struct Case {
  std::string name;
  Ranks ranks;
};

std::string NameOf(const Ranks& r) {
  return std::string(batch::StepModeName(r.prefill_mode)) + "_tp" + std::to_string(r.tp) + "_cp" +
         std::to_string(r.attn_cp) + "_ep" + std::to_string(r.ep) +
         (r.strategy == parallel::Contiguous ? "_contiguous"
          : r.attn_cp > 1                    ? "_zigzag"
                                             : "");
}

// Every way to spread over up to `max_tp` ranks that promises the bits of one rank.
std::vector<Case> Cases(int max_tp) {
  std::vector<Case> cases;
  const auto add = [&](const Ranks& r) { cases.push_back({NameOf(r), r}); };
  for (int tp = 2; tp <= max_tp; tp *= 2) {
    add({.tp = tp});
    for (int cp = 2; cp <= tp; cp *= 2) {
      add({.tp = tp, .attn_cp = cp, .prefill_mode = StepMode::kTp});
      for (const parallel::CpStrategy strategy : {parallel::Zigzag, parallel::Contiguous}) {
        for (const StepMode mode : {StepMode::kHead, StepMode::kReplicated}) {
          add({.tp = tp, .attn_cp = cp, .prefill_mode = mode, .strategy = strategy});
        }
      }
    }
  }
  return cases;
}

// Ragged lengths, whole and in pieces (so with prefixes), with decode rows at the end.
std::vector<Sequence> Batch(int64_t vocab) {
  std::vector<Sequence> batch;
  uint64_t x = 12345;
  const auto next = [&] {
    return static_cast<int32_t>((x = x * 6364136223846793005u + 1442695040888963407u) >> 33);
  };
  for (const auto& [length, piece, decode] : std::vector<std::tuple<int, int, int>>{{1, 0, 0},
                                                                                    {2, 0, 1},
                                                                                    {7, 0, 2},
                                                                                    {63, 0, 1},
                                                                                    {64, 64, 0},
                                                                                    {65, 64, 1},
                                                                                    {130, 64, 2},
                                                                                    {200, 128, 3}}) {
    Sequence s;
    for (int i = 0; i < length; ++i) s.ids.push_back(next() % static_cast<int32_t>(vocab));
    s.piece = piece;
    s.decode_rows = decode;
    batch.push_back(std::move(s));
  }
  return batch;
}

void ExpectSameBits(const std::string& folder, const std::vector<Case>& cases) {
  std::vector<std::vector<float>> one;
  std::vector<Sequence> batch;
  {
    ModelHarness harness(folder, 2);
    batch = Batch(harness.vocab_size());
    one = harness.Run(batch);
  }
  for (const Case& c : cases) {
    ModelHarness harness(folder, 1, c.ranks);
    if (!harness.takes_part()) continue;
    const std::vector<std::vector<float>> spread = harness.Run(batch);
    ASSERT_EQ(spread.size(), one.size());
    for (size_t s = 0; s < one.size(); ++s) {
      EXPECT_TRUE(spread[s] == one[s])
          << c.name << ", sequence " << s << " of " << batch[s].ids.size() << " tokens";
    }
  }
}

// Of each sequence's logits over all rows, those of the last prompt row and of the decoded rows.
std::vector<std::vector<float>> SampledRows(const std::vector<std::vector<float>>& all,
                                            const std::vector<Sequence>& batch, int64_t vocab) {
  std::vector<std::vector<float>> sampled;
  for (size_t s = 0; s < all.size(); ++s) {
    sampled.emplace_back(all[s].end() - (batch[s].decode_rows + 1) * vocab, all[s].end());
  }
  return sampled;
}

// Where only some rows are wanted the rest end early: nothing else may change. Some ranks then hold no wanted
// row.
TEST(RanksTest, RowsThatNobodyWantsDoNotMatter) {
  const std::string folder = std::string(PERIGEE_MODELS) + "/tiny-kimi-linear";
  ModelHarness one(folder, 2);
  const std::vector<Sequence> batch = Batch(one.vocab_size());
  const auto expected = SampledRows(one.Run(batch), batch, one.vocab_size());
  EXPECT_EQ(one.RunSampled(batch), expected);
  for (const Ranks& r : {Ranks{.tp = 2}, Ranks{.tp = 4, .attn_cp = 4, .prefill_mode = StepMode::kHead},
                         Ranks{.tp = 4, .attn_cp = 2, .prefill_mode = StepMode::kHead},
                         Ranks{.tp = 4, .attn_cp = 4, .prefill_mode = StepMode::kReplicated}}) {
    ModelHarness harness(folder, 1, r);
    if (!harness.takes_part()) continue;
    EXPECT_EQ(harness.RunSampled(batch), expected) << NameOf(r);
  }
}

// With whole experts on a rank the sums have other parts: such runs equal each other.
TEST(RanksTest, ExpertParallelRunsEqualEachOther) {
  const std::string folder = std::string(PERIGEE_MODELS) + "/tiny-kimi-linear";
  ModelHarness two(folder, 1, Ranks{.tp = 2, .ep = 2});
  const std::vector<Sequence> batch = Batch(two.vocab_size());
  const auto expected = two.Run(batch);
  for (const Ranks& r :
       {Ranks{.tp = 4, .ep = 4}, Ranks{.tp = 4, .attn_cp = 4, .ep = 4, .prefill_mode = StepMode::kHead},
        Ranks{.tp = 2, .attn_cp = 2, .ep = 2, .prefill_mode = StepMode::kReplicated}}) {
    EXPECT_EQ(ModelHarness(folder, 1, r).Run(batch), expected) << NameOf(r);
  }
  // Not far from one rank either.
  const auto one = ModelHarness(folder, 2).Run(batch);
  double worst = 0;
  for (size_t s = 0; s < one.size(); ++s) {
    for (size_t i = 0; i < one[s].size(); ++i)
      worst = std::max(worst, std::abs(double{one[s][i]} - expected[s][i]));
  }
  EXPECT_LE(worst, 1e-3);
  EXPECT_GT(worst, 0) << "the parts are the same after all: then say so";
}

TEST(RanksTest, EightHeadsGiveTheSameBitsOnUpToEightRanks) {
  ExpectSameBits(std::string(PERIGEE_TEST_DATA) + "/random/eight_heads", Cases(8));
}

// Where sums cannot keep their parts, or prompts read latents, results are close to one rank's and not more.
TEST(RanksTest, OtherRankCountsAndFormsComeClose) {
  using parallel::AttentionForm;
  const std::string random = std::string(PERIGEE_TEST_DATA) + "/random/";
  const std::vector<std::pair<std::string, Ranks>> cases = {
      {random + "six_heads", {.tp = 3}},
      {random + "six_heads",
       {.tp = 3, .attn_cp = 3, .prefill_mode = StepMode::kHead, .form = AttentionForm::kByCost}},
      {random + "six_heads", {.tp = 6, .attn_cp = 3, .prefill_mode = StepMode::kReplicated}},
      {random + "six_heads", {.tp = 1, .form = AttentionForm::kAbsorbed}},
      {random + "eight_heads", {.tp = 4, .ep = 2}},
      {random + "eight_heads",
       {.tp = 4, .attn_cp = 2, .ep = 2, .prefill_mode = StepMode::kHead, .form = AttentionForm::kAbsorbed}}};
  for (const auto& [folder, ranks] : cases) {
    ModelHarness one(folder, 2);
    const std::vector<Sequence> batch = Batch(one.vocab_size());
    const auto expected = one.Run(batch);
    const auto spread = ModelHarness(folder, 1, ranks).Run(batch);
    double worst = 0;
    for (size_t s = 0; s < expected.size(); ++s) {
      ASSERT_EQ(spread[s].size(), expected[s].size());
      for (size_t i = 0; i < expected[s].size(); ++i) {
        worst = std::max(worst, std::abs(double{expected[s][i]} - spread[s][i]));
      }
    }
    EXPECT_LE(worst, 5e-4) << folder << " " << NameOf(ranks);
    EXPECT_GT(worst, 0) << folder << " " << NameOf(ranks);
  }
}

// Every length from 1 to 200, eight prompts a step, in pieces of 64.
TEST(RanksTest, EveryLengthGivesTheSameBits) {
  const std::string folder = std::string(PERIGEE_TEST_DATA) + "/random/eight_heads";
  ModelHarness one(folder, 2);
  std::vector<std::vector<Sequence>> batches;
  std::vector<std::vector<std::vector<float>>> expected;
  for (int64_t first = 1; first <= 200; first += 8) {
    std::vector<Sequence> batch(8);
    for (int64_t s = 0; s < 8; ++s) {
      for (int64_t i = 0; i < first + s; ++i) {
        batch[static_cast<size_t>(s)].ids.push_back(
            static_cast<int32_t>((i * i + 7 * i + first) % one.vocab_size()));
      }
      batch[static_cast<size_t>(s)].piece = 64;
    }
    expected.push_back(one.Run(batch));
    batches.push_back(std::move(batch));
  }
  for (const Case& c : Cases(8)) {
    ModelHarness harness(folder, 1, c.ranks);
    for (size_t b = 0; b < batches.size(); ++b) {
      EXPECT_TRUE(harness.Run(batches[b]) == expected[b]) << c.name << ", lengths from " << 8 * b + 1;
    }
  }
}

// One prompt of 16,384 tokens in chunks of 8192: many key pieces, prefixes, and a zigzag over 4 ranks.
TEST(RanksTest, ALongPromptGivesTheSameBits) {
  const std::string folder = std::string(PERIGEE_MODELS) + "/tiny-kimi-linear";
  constexpr int64_t kTokens = 16384;
  ModelHarness one(folder, 2, 1, kTokens + 64);
  Sequence prompt{.ids = {}, .piece = 8192, .decode_rows = 2};
  for (int64_t i = 0; i < kTokens; ++i) prompt.ids.push_back(static_cast<int32_t>((i * i + 31 * i) % 1790));
  const auto expected = one.RunSampled({prompt});
  const Ranks ranks{.tp = 4, .attn_cp = 4, .prefill_mode = StepMode::kHead};
  EXPECT_EQ(ModelHarness(folder, 1, ranks, 1, kTokens + 64).RunSampled({prompt}), expected);
}

TEST(RanksTest, TinyModelGivesTheSameBits) {
  ExpectSameBits(std::string(PERIGEE_MODELS) + "/tiny-kimi-linear", Cases(4));
}

}  // namespace
}  // namespace perigee::testing
