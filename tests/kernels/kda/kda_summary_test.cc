#include "kernels/kda/kda_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/kda/kda_problem.h"
#include "testing/targets.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;
using ref::KdaShape;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Summary {
  std::vector<float> transition;
  std::vector<float> state;
};

std::vector<KdaSequence> RandomBatch(uint64_t seed, const KdaShape& shape, GateKind gates,
                                     const std::vector<int64_t>& lengths) {
  Random random(seed);
  std::vector<KdaSequence> batch;
  for (const int64_t tokens : lengths) {
    batch.push_back(RandomKdaSequence(random, shape, tokens, {.gates = gates}));
  }
  return batch;
}

// The sequences as one packed batch.
std::vector<Summary> Summarise(const KdaShape& shape, const std::vector<KdaSequence>& sequences,
                               int threads = 2) {
  const int64_t keys = shape.heads * shape.key_dim, values = shape.heads * shape.value_dim;
  std::vector<float> k, v, g, beta;
  std::vector<Summary> summaries(sequences.size());
  std::vector<KdaSummarySegment> segments;
  int64_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const KdaSequence& s = sequences[i];
    k.insert(k.end(), s.k.begin(), s.k.end());
    v.insert(v.end(), s.v.begin(), s.v.end());
    g.insert(g.end(), s.g.begin(), s.g.end());
    beta.insert(beta.end(), s.beta.begin(), s.beta.end());
    summaries[i].transition.assign(static_cast<size_t>(keys * shape.key_dim), kNaN);
    summaries[i].state.assign(static_cast<size_t>(keys * shape.value_dim), kNaN);
    segments.push_back({rows, s.tokens, summaries[i].transition.data(), summaries[i].state.data()});
    rows += s.tokens;
  }
  const PaddedMatrix km(rows, keys, k), vm(rows, values, v), gm(rows, keys, g), bm(rows, shape.heads, beta);
  KernelRunner runner(threads);
  KdaSummary(runner.context(), {.num_heads = shape.heads,
                                .key_dim = shape.key_dim,
                                .value_dim = shape.value_dim,
                                .k = km.view(),
                                .v = vm.view(),
                                .g = gm.view(),
                                .beta = bm.view(),
                                .segments = segments});
  return summaries;
}

// As a float holds it: products of decays below its range are zero.
std::vector<float> ToFloat(const std::vector<double>& x) {
  return {x.begin(), x.end()};
}

void ExpectReference(const KdaShape& shape, const std::vector<KdaSequence>& batch) {
  std::vector<ref::KdaSummary> expected;
  for (const KdaSequence& s : batch) {
    expected.push_back(
        ref::SummariseKda(shape, ToDouble(s.k), ToDouble(s.v), ToDouble(s.g), ToDouble(s.beta)));
  }
  ForEachTarget([&](int64_t) {
    const std::vector<Summary> actual = Summarise(shape, batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << batch[i].tokens << " tokens, " << shape.heads << " heads "
                                        << shape.key_dim << " x " << shape.value_dim);
      EXPECT_TRUE(Near(actual[i].transition, ToFloat(expected[i].transition), kKdaTolerance));
      EXPECT_TRUE(Near(actual[i].state, expected[i].state, kKdaTolerance));
    }
  });
}

TEST(KdaSummary, EveryGateKindAgainstTheProductOfMatrices) {
  for (const GateKind gates :
       {GateKind::kModel, GateKind::kSlow, GateKind::kFast, GateKind::kZero, GateKind::kMixed}) {
    SCOPED_TRACE(::testing::Message() << "gate kind " << static_cast<int>(gates));
    ExpectReference({2, 32, 48}, RandomBatch(41, {2, 32, 48}, gates, {1, 63, 64, 65, 130}));
  }
}

TEST(KdaSummary, ShapesAgainstTheProductOfMatrices) {
  for (const KdaShape& shape : {KdaShape{1, 128, 64}, KdaShape{3, 20, 24}, KdaShape{1, 24, 20},
                                KdaShape{2, 1, 3}, KdaShape{5, 16, 16}, KdaShape{1, 33, 65}}) {
    ExpectReference(shape, RandomBatch(42, shape, GateKind::kMixed, {1, 64, 65}));
  }
}

// A gate of -2000 in every channel: nothing from before the last token is left, to the bit.
TEST(KdaSummary, AGateThatForgetsEverythingLeavesNoTransition) {
  const KdaShape shape{2, 16, 24};
  std::vector<KdaSequence> batch = RandomBatch(43, shape, GateKind::kModel, {1, 64, 65});
  for (KdaSequence& s : batch) std::fill(s.g.end() - shape.heads * shape.key_dim, s.g.end(), -2000.0f);
  for (const Summary& s : Summarise(shape, batch)) {
    EXPECT_EQ(s.transition, std::vector<float>(s.transition.size(), 0.0f));
  }
  ExpectReference(shape, batch);
}

TEST(KdaSummary, BitsDependOnNeitherThreadsNorNeighbours) {
  const KdaShape shape{3, 20, 24};
  const std::vector<KdaSequence> batch = RandomBatch(44, shape, GateKind::kMixed, {65, 1, 64, 129});
  const std::vector<Summary> one = Summarise(shape, batch, 1);
  const std::vector<Summary> three = Summarise(shape, batch, 3);
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_TRUE(SameBits(three[i].transition, one[i].transition));
    EXPECT_TRUE(SameBits(three[i].state, one[i].state));
    const Summary alone = Summarise(shape, {batch[i]})[0];
    EXPECT_TRUE(SameBits(alone.transition, one[i].transition));
    EXPECT_TRUE(SameBits(alone.state, one[i].state));
  }
}

// One sequence in pieces: the first runs from the initial state, of the others only summaries are known.
class Pieces {
 public:
  Pieces(const KdaShape& shape, const KdaSequence& s, const std::vector<int64_t>& lengths) : shape_(shape) {
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      const KdaSequence piece = KdaPiece(shape, s, begin, length, s.state);
      if (begin == 0) {
        summaries_.push_back({{}, RunKda(KdaPrefill, shape, {piece})[0].state});
      } else {
        summaries_.push_back(Summarise(shape, {piece})[0]);
      }
      begin += length;
    }
    EXPECT_EQ(begin, s.tokens);
  }

  Summary& operator[](size_t i) { return summaries_[i]; }

  // States of heads [begin, end) after some pieces each.
  std::vector<std::vector<float>> Fold(const std::vector<int64_t>& after, int64_t begin, int64_t end) {
    std::vector<KdaFoldStep> steps;
    for (const Summary& s : summaries_) {
      steps.push_back({s.transition.empty() ? nullptr : s.transition.data(), s.state.data()});
    }
    const int64_t size = (end - begin) * shape_.key_dim * shape_.value_dim;
    std::vector<std::vector<float>> states(after.size(), std::vector<float>(static_cast<size_t>(size), kNaN));
    std::vector<KdaFoldOutput> outputs;
    for (size_t i = 0; i < after.size(); ++i) outputs.push_back({after[i], begin, end, states[i].data()});
    const KdaFoldChain chain{steps, outputs};
    KernelRunner runner(2);
    KdaFold(runner.context(), {shape_.heads, shape_.key_dim, shape_.value_dim, {&chain, 1}});
    return states;
  }

 private:
  KdaShape shape_;
  std::vector<Summary> summaries_;
};

TEST(KdaFold, EveryBoundaryAgainstTheRecurrence) {
  const std::vector<int64_t> lengths = {65, 1, 64, 63, 100};
  for (const KdaShape& shape : {KdaShape{2, 32, 48}, KdaShape{3, 20, 24}, KdaShape{1, 24, 20}}) {
    for (const GateKind gates : {GateKind::kModel, GateKind::kSlow, GateKind::kZero, GateKind::kMixed}) {
      const KdaSequence s = RandomBatch(45, shape, gates, {293})[0];
      ForEachTarget([&](int64_t) {
        const auto states = Pieces(shape, s, lengths).Fold({1, 2, 3, 4, 5}, 0, shape.heads);
        int64_t tokens = 0;
        for (size_t i = 0; i < lengths.size(); ++i) {
          tokens += lengths[i];
          SCOPED_TRACE(::testing::Message() << tokens << " tokens, gate kind " << static_cast<int>(gates));
          const KdaExpected expected = KdaReference(shape, KdaPiece(shape, s, 0, tokens, s.state));
          EXPECT_TRUE(Near(states[i], expected.state, kKdaTolerance));
        }
      });
    }
  }
}

TEST(KdaFold, BitsDoNotDependOnWhatElseIsWanted) {
  const KdaShape shape{3, 20, 24};
  KdaSequence s = RandomBatch(46, shape, GateKind::kModel, {200})[0];
  // One head forgets everything at token 120.
  for (int64_t c = 20; c < 40; ++c) s.g[static_cast<size_t>(120 * 60 + c)] = -2000;
  Pieces pieces(shape, s, {50, 50, 50, 50});
  const auto all = pieces.Fold({1, 2, 3, 4}, 0, 3);
  EXPECT_TRUE(SameBits(pieces.Fold({4}, 0, 3)[0], all[3]));
  EXPECT_TRUE(SameBits(pieces.Fold({2, 3}, 0, 3)[1], all[2]));
  const std::vector<float> middle(all[3].begin() + 480, all[3].begin() + 960);
  EXPECT_TRUE(SameBits(pieces.Fold({4}, 1, 2)[0], middle));
}

// What cannot be reached is not read: a head that forgot everything does not see what was before.
TEST(KdaFold, VanishedHeadsStartAnew) {
  const KdaShape shape{2, 16, 24};
  KdaSequence s = RandomBatch(47, shape, GateKind::kModel, {150})[0];
  for (int64_t c = 0; c < 32; ++c) s.g[static_cast<size_t>(99 * 32 + c)] = -2000;
  Pieces pieces(shape, s, {50, 25, 25, 50});
  const auto expected = pieces.Fold({3, 4}, 0, 2);
  for (size_t i : {0, 1}) std::fill(pieces[i].state.begin(), pieces[i].state.end(), kNaN);
  const auto states = pieces.Fold({3, 4}, 0, 2);
  EXPECT_TRUE(SameBits(states[0], expected[0]));
  EXPECT_TRUE(SameBits(states[1], expected[1]));
  EXPECT_TRUE(Near(states[1], KdaReference(shape, s).state, kKdaTolerance));
}

}  // namespace
}  // namespace perigee::kernels
