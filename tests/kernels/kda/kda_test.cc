#include "kernels/kda/kda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kda/kda_problem.h"
#include "testing/targets.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;
using ref::KdaShape;

const std::vector<int64_t> kLengths = {1, 2, 63, 64, 65, 127, 128, 129, 257};

std::vector<KdaSequence> RandomBatch(uint64_t seed, const KdaShape& shape, const KdaInputs& inputs,
                                     const std::vector<int64_t>& lengths = kLengths) {
  Random random(seed);
  std::vector<KdaSequence> batch;
  for (int64_t tokens : lengths) batch.push_back(RandomKdaSequence(random, shape, tokens, inputs));
  return batch;
}

void ExpectReference(KdaKernel kernel, const KdaShape& shape, const std::vector<KdaSequence>& batch) {
  std::vector<KdaExpected> expected;
  for (const KdaSequence& s : batch) expected.push_back(KdaReference(shape, s));
  ForEachTarget([&](int64_t) {
    const std::vector<KdaResult> results = RunKda(kernel, shape, batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << batch[i].tokens << " tokens, " << shape.heads << " heads "
                                        << shape.key_dim << " x " << shape.value_dim);
      EXPECT_TRUE(Near(results[i].out, expected[i].out, kKdaTolerance));
      EXPECT_TRUE(Near(results[i].state, expected[i].state, kKdaTolerance));
    }
  });
}

// Runs a sequence in pieces of the given lengths.
KdaResult RunInPieces(KdaKernel kernel, const KdaShape& shape, const KdaSequence& s,
                      const std::vector<int64_t>& pieces) {
  KdaResult result{.out = {}, .state = s.state};
  int64_t begin = 0;
  for (int64_t length : pieces) {
    KdaResult piece = RunKda(kernel, shape, {KdaPiece(shape, s, begin, length, result.state)})[0];
    result.out.insert(result.out.end(), piece.out.begin(), piece.out.end());
    result.state = std::move(piece.state);
    begin += length;
  }
  EXPECT_EQ(begin, s.tokens);
  return result;
}

struct Kernel {
  const char* name;
  KdaKernel run;
};

class KdaTest : public ::testing::TestWithParam<Kernel> {};

TEST_P(KdaTest, EveryGateKindAgainstTheRecurrence) {
  for (GateKind gates :
       {GateKind::kModel, GateKind::kSlow, GateKind::kFast, GateKind::kZero, GateKind::kMixed}) {
    SCOPED_TRACE(::testing::Message() << "gate kind " << static_cast<int>(gates));
    ExpectReference(GetParam().run, {2, 32, 48}, RandomBatch(21, {2, 32, 48}, {.gates = gates}));
  }
}

TEST_P(KdaTest, ShapesAgainstTheRecurrence) {
  const std::vector<int64_t> lengths = {1, 65, 130};
  for (const KdaShape& shape : {KdaShape{1, 128, 128}, KdaShape{3, 20, 24}, KdaShape{1, 24, 20},
                                KdaShape{2, 1, 3}, KdaShape{5, 16, 16}, KdaShape{1, 65, 33}}) {
    ExpectReference(GetParam().run, shape, RandomBatch(22, shape, {.gates = GateKind::kMixed}, lengths));
  }
}

TEST_P(KdaTest, KeysThatShareADirection) {
  ExpectReference(GetParam().run, {2, 32, 48},
                  RandomBatch(23, {2, 32, 48}, {.gates = GateKind::kZero, .shared_direction = 2}));
  ExpectReference(GetParam().run, {2, 32, 48},
                  RandomBatch(24, {2, 32, 48}, {.gates = GateKind::kSlow, .shared_direction = 1}));
}

TEST_P(KdaTest, EpsilonIsAddedToTheSumOfSquares) {
  // Sums of squares around 1e-6, where the epsilon's place shows, and exact zeros.
  for (double scale : {2e-4, 0.0}) {
    ExpectReference(GetParam().run, {2, 16, 24},
                    RandomBatch(25, {2, 16, 24}, {.gates = GateKind::kSlow, .key_scale = scale}, {1, 70}));
  }
}

TEST_P(KdaTest, ManyTokensWithSlowDecayDoNotDrift) {
  ExpectReference(GetParam().run, {1, 16, 16},
                  RandomBatch(26, {1, 16, 16}, {.gates = GateKind::kSlow}, {3000}));
}

TEST_P(KdaTest, WorkedExampleOfTheSpecification) {
  KdaSequence s{.tokens = 3,
                .q = {0.8f, 0.6f, 0.6f, -0.8f, 0, 1},
                .k = {0.6f, 0.8f, 1, 0, 0.8f, -0.6f},
                .v = {1, 2, 3, -1, 0.5f, 2, 0.25f, -2, 1},
                .g = {-0.1f, -0.7f, -0.5f, -0.2f, -1.5f, -0.05f},
                .beta = {0.5f, 0.9f, 0.25f},
                .state = {0.2f, -0.4f, 0.1f, 0.5f, 0.3f, -0.6f}};
  const KdaResult r = RunKda(GetParam().run, {1, 2, 3}, {s})[0];
  const std::vector<double> out = {0.44285148, 0.57054185, 1.00548479, -0.61517166, -0.25986270,
                                   0.33870532, 0.22018863, 0.71616235, 0.41815836};
  const std::vector<double> state = {-0.06516396, -0.22026598, 0.64044352,
                                     0.31139375,  1.01280651,  0.59136522};
  EXPECT_TRUE(Near(r.out, out, {.absolute = 3e-6}));
  EXPECT_TRUE(Near(r.state, state, {.absolute = 3e-6}));
}

TEST_P(KdaTest, AGateThatForgetsEverythingLeavesOnlyTheOwnToken) {
  const KdaShape shape{2, 16, 24};
  std::vector<KdaSequence> batch = RandomBatch(27, shape, {}, {130});
  for (float& g : batch[0].g) g = -2000;
  ExpectReference(GetParam().run, shape, batch);
  KdaSequence last = KdaPiece(shape, batch[0], 129, 1, std::vector<float>(batch[0].state.size(), 0.0f));
  EXPECT_TRUE(
      Near(RunKda(GetParam().run, shape, batch)[0].state, KdaReference(shape, last).state, kKdaTolerance));
}

TEST_P(KdaTest, AnySplitStaysWithinTheTolerance) {
  const KdaShape shape{2, 32, 48};
  const KdaSequence s = RandomBatch(28, shape, {.gates = GateKind::kMixed}, {257})[0];
  const KdaExpected expected = KdaReference(shape, s);
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{1, 256}, {256, 1}, {3, 60, 194}, {100, 100, 57}, {63, 65, 129}}) {
    SCOPED_TRACE(::testing::Message() << "first piece " << pieces[0]);
    const KdaResult r = RunInPieces(GetParam().run, shape, s, pieces);
    EXPECT_TRUE(Near(r.out, expected.out, kKdaTolerance));
    EXPECT_TRUE(Near(r.state, expected.state, kKdaTolerance));
  }
}

TEST_P(KdaTest, BitsDependOnNeitherThreadsNorNeighboursNorSegmentOrder) {
  const KdaShape shape{3, 20, 24};
  const std::vector<KdaSequence> batch = RandomBatch(29, shape, {.gates = GateKind::kMixed});
  const std::vector<KdaResult> one = RunKda(GetParam().run, shape, batch, 1);
  std::vector<size_t> order(batch.size());
  std::iota(order.rbegin(), order.rend(), 0);
  for (int threads : {2, 3}) {
    const std::vector<KdaResult> reversed = RunKda(GetParam().run, shape, batch, threads, order);
    for (size_t i = 0; i < batch.size(); ++i) {
      EXPECT_TRUE(SameBits(reversed[i].out, one[i].out)) << batch[i].tokens << " tokens";
      EXPECT_TRUE(SameBits(reversed[i].state, one[i].state)) << batch[i].tokens << " tokens";
    }
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    const KdaResult alone = RunKda(GetParam().run, shape, {batch[i]})[0];
    EXPECT_TRUE(SameBits(alone.out, one[i].out)) << batch[i].tokens << " tokens";
    EXPECT_TRUE(SameBits(alone.state, one[i].state)) << batch[i].tokens << " tokens";
  }
}

TEST_P(KdaTest, HeadsDoNotDependOnEachOther) {
  // A head computed alone, as a rank of a tensor-parallel group does it, gives the same bits.
  const KdaShape shape{3, 20, 24}, one{1, 20, 24};
  const KdaSequence s = RandomBatch(30, shape, {}, {129})[0];
  const KdaResult all = RunKda(GetParam().run, shape, {s})[0];
  const auto head = [](const std::vector<float>& x, int64_t width, int64_t tokens) {
    std::vector<float> out;
    for (int64_t t = 0; t < tokens; ++t) {
      out.insert(out.end(), x.begin() + (t * 3 + 1) * width, x.begin() + (t * 3 + 2) * width);
    }
    return out;
  };
  const KdaSequence middle{.tokens = 129,
                           .q = head(s.q, 20, 129),
                           .k = head(s.k, 20, 129),
                           .v = head(s.v, 24, 129),
                           .g = head(s.g, 20, 129),
                           .beta = head(s.beta, 1, 129),
                           .state = head(s.state, 20 * 24, 1)};
  const KdaResult alone = RunKda(GetParam().run, one, {middle})[0];
  EXPECT_TRUE(SameBits(alone.out, head(all.out, 24, 129)));
  EXPECT_TRUE(SameBits(alone.state, head(all.state, 20 * 24, 1)));
}

TEST_P(KdaTest, DecaysFromLogitsAreThoseOfTheGate) {
  constexpr int64_t kRows = 130, kHeads = 2, kWidth = 20;
  Random random(34);
  const auto rows = [&](int64_t cols) { return PaddedMatrix(kRows, cols, random.Normals(kRows * cols)); };
  const PaddedMatrix q = rows(kHeads * kWidth), k = rows(kHeads * kWidth), v = rows(kHeads * kWidth),
                     z = rows(kHeads * kWidth);
  const PaddedMatrix beta(kRows, kHeads, random.Uniforms(kRows * kHeads, 0, 1));
  const std::vector<float> bias = random.Normals(kHeads * kWidth), slopes = {-0.02f, -9.0f};
  const std::vector<Segment> segments = {{.q_begin = 0, .q_len = kRows}};
  KernelRunner runner;
  const auto run = [&](ConstMatrix g) {
    std::vector<float> state(kHeads * kWidth * kWidth, 0.25f);
    PaddedMatrix out(kRows, kHeads * kWidth);
    GetParam().run(runner.context(), {.num_heads = kHeads,
                                      .key_dim = kWidth,
                                      .value_dim = kWidth,
                                      .q = q.view(),
                                      .k = k.view(),
                                      .v = v.view(),
                                      .g = g,
                                      .decay = {z.view(), bias, slopes},
                                      .beta = beta.view(),
                                      .segments = segments,
                                      .states = {.recurrent = state.data()},
                                      .out = out.view()});
    return KdaResult{out.values(), state};
  };
  PaddedMatrix g(kRows, kHeads * kWidth);
  KdaGate(runner.context(), z.view(), bias, slopes, g.view());
  const KdaResult given = run(std::as_const(g).view()), formed = run({});
  EXPECT_TRUE(SameBits(formed.out, given.out));
  EXPECT_TRUE(SameBits(formed.state, given.state));
  EXPECT_GT(given.out[0] * given.out[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Forms, KdaTest,
                         ::testing::Values(Kernel{"Prefill", KdaPrefill}, Kernel{"Decode", KdaDecode}),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

TEST(KdaPrefill, SplitsAtMultiplesOf64GiveTheSameBits) {
  for (const KdaShape& shape : {KdaShape{2, 32, 48}, KdaShape{1, 128, 128}, KdaShape{3, 20, 24}}) {
    const KdaSequence s = RandomBatch(31, shape, {.gates = GateKind::kMixed}, {257})[0];
    const KdaResult whole = RunKda(KdaPrefill, shape, {s})[0];
    for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{
             {64, 193}, {128, 129}, {192, 65}, {256, 1}, {64, 64, 129}, {64, 64, 64, 64, 1}}) {
      SCOPED_TRACE(::testing::Message() << pieces.size() << " pieces, first " << pieces[0]);
      const KdaResult r = RunInPieces(KdaPrefill, shape, s, pieces);
      EXPECT_TRUE(SameBits(r.out, whole.out));
      EXPECT_TRUE(SameBits(r.state, whole.state));
    }
  }
}

TEST(KdaDecode, RowsOneByOneGiveTheSameBits) {
  const KdaShape shape{2, 32, 48};
  const KdaSequence s = RandomBatch(32, shape, {.gates = GateKind::kMixed}, {40})[0];
  const KdaResult whole = RunKda(KdaDecode, shape, {s})[0];
  const KdaResult r = RunInPieces(KdaDecode, shape, s, std::vector<int64_t>(40, 1));
  EXPECT_TRUE(SameBits(r.out, whole.out));
  EXPECT_TRUE(SameBits(r.state, whole.state));
}

TEST(Kda, DecodeGoesOnFromPrefill) {
  // Every cut between the two forms around the chunk borders.
  const KdaShape shape{2, 20, 24};
  const KdaSequence s = RandomBatch(33, shape, {.gates = GateKind::kMixed}, {130})[0];
  const KdaExpected expected = KdaReference(shape, s);
  for (int64_t cut : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    SCOPED_TRACE(::testing::Message() << "prefill of " << cut);
    const KdaResult head = RunKda(KdaPrefill, shape, {KdaPiece(shape, s, 0, cut, s.state)})[0];
    const KdaResult tail = RunKda(KdaDecode, shape, {KdaPiece(shape, s, cut, 130 - cut, head.state)})[0];
    std::vector<float> out = head.out;
    out.insert(out.end(), tail.out.begin(), tail.out.end());
    EXPECT_TRUE(Near(out, expected.out, kKdaTolerance));
    EXPECT_TRUE(Near(tail.state, expected.state, kKdaTolerance));
  }
}

}  // namespace
}  // namespace perigee::kernels
