// One model, however it is spread over ranks: the same bits as one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "testing/model_harness.h"
#include "testing/random.h"

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
    const std::vector<std::vector<float>> spread = harness.Run(batch);
    ASSERT_EQ(spread.size(), one.size());
    for (size_t s = 0; s < one.size(); ++s) {
      EXPECT_TRUE(spread[s] == one[s])
          << c.name << ", sequence " << s << " of " << batch[s].ids.size() << " tokens";
    }
  }
}

TEST(RanksTest, TinyModelGivesTheSameBits) {
  ExpectSameBits(std::string(PERIGEE_MODELS) + "/tiny-kimi-linear", Cases(4));
}

}  // namespace
}  // namespace perigee::testing
