#include "parallel/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "parallel/spans.h"
#include "parallel/stack_48b.h"

namespace perigee::parallel {
namespace {

using test::MakeSpans;

ModelShape Shape48B() {
  return {.attention = test::Stack48B(),
          .hidden = 2304,
          .kda_heads = 32,
          .key_dim = 128,
          .value_dim = 128,
          .conv_history = 3,
          .gate_rank = 128,
          .mla_heads = 32,
          .latent = 576,
          .expand_flops = 2 * 512 * 256};
}

constexpr double kForever = std::numeric_limits<double>::infinity();

// Links alone count, and take a second a byte.
Rates EqualLinks(double row_bytes = 2) {
  const Link link{1, 0};
  return {link, link, link, kForever, row_bytes};
}

ModeCost OfPrompt(StepMode mode, const Rates& rates, const RankShape& ranks, int64_t rows,
                  int64_t prefix = 0) {
  return CostOf(mode, Shape48B(), rates, ranks, MakeSpans({{prefix, rows}}));
}

TEST(SentPerRow, PartsOfARow) {
  EXPECT_EQ(SentPerRow(Transition::kAllGather, 4, 4).cp, 0.75);
  EXPECT_EQ(SentPerRow(Transition::kAllReduceTp, 4, 4).tp, 1.5);
  EXPECT_EQ(SentPerRow(Transition::kReduceScatter, 4, 4).total(), 0.75);
  // tp 8, C 4: a quarter of the rows over two ranks more.
  EXPECT_EQ(SentPerRow(Transition::kReduceScatter, 8, 4).attn_tp, 0.25);
  EXPECT_EQ(SentPerRow(Transition::kSlice, 4, 4).total(), 0);
}

// Over links alone a mode costs the elements of docs/context_parallel.md: 81, 71.8 and 41.8 u a row.
TEST(Planner, LinksCarryTheElementsOfTheTables) {
  const RankShape ranks{4, 4, Zigzag};
  constexpr double kRowBytes = 2304 * 2;
  const double rows = 65536;
  EXPECT_DOUBLE_EQ(OfPrompt(StepMode::kTp, EqualLinks(), ranks, 65536).link, 81 * rows * kRowBytes);
  EXPECT_DOUBLE_EQ(OfPrompt(StepMode::kHead, EqualLinks(), ranks, 65536).link, 71.8125 * rows * kRowBytes);
  // Two segments a rank: of each 3 rows of 3 x 4096, and M and B of 32 heads, to three others, in 20 layers.
  const double fixed = 20 * 3 * 2 * (3 * 3 * 4096 * 2.0 + 32 * 128 * 256 * 4.0);
  EXPECT_DOUBLE_EQ(OfPrompt(StepMode::kState, EqualLinks(), ranks, 65536).link,
                   41.8125 * rows * kRowBytes + fixed);
  // A prefix adds the rank's share of the state and of the conv tail.
  const double entry = 20 * 3 * (32 * 128 * 128 + 3 * 3 * 4096) / 4 * 4.0;
  EXPECT_DOUBLE_EQ(OfPrompt(StepMode::kState, EqualLinks(), ranks, 65536, 64).link,
                   41.8125 * rows * kRowBytes + fixed + entry);
}

TEST(Planner, EachLinkHasItsOwnRate) {
  Rates rates = EqualLinks();
  const RankShape ranks{8, 4, Zigzag};
  const double equal = OfPrompt(StepMode::kHead, rates, ranks, 4096).link;
  rates.attn_tp.bytes_per_second /= 2;
  // 47 blocks scatter and 7 attentions keep rows: each sums a quarter of the rows over two ranks.
  const double attn_tp = 54 * 0.25 * 4096 * 2304 * 2;
  EXPECT_DOUBLE_EQ(OfPrompt(StepMode::kHead, rates, ranks, 4096).link, equal + attn_tp);
  rates.tp.bytes_per_second /= 2;
  EXPECT_DOUBLE_EQ(OfPrompt(StepMode::kHead, rates, ranks, 4096).link, equal + attn_tp);
}

TEST(Planner, EveryCollectiveHasItsLatency) {
  Rates rates = EqualLinks();
  rates.tp.seconds_per_call = rates.cp.seconds_per_call = rates.attn_tp.seconds_per_call = 1;
  const RankShape ranks{4, 4, Zigzag};
  EXPECT_EQ(OfPrompt(StepMode::kTp, rates, ranks, 100).latency, 54);
  EXPECT_EQ(OfPrompt(StepMode::kHead, rates, ranks, 100).latency, 47 * 2 + 7);
  EXPECT_EQ(OfPrompt(StepMode::kState, rates, ranks, 100).latency, 27 * 2 + 20 * 2 + 7);
}

// What a state costs is paid back by long prompts; figures of the design for links between nodes.
TEST(Planner, BreakEvenOfStateOnEqualLinks) {
  EXPECT_NEAR(static_cast<double>(StateBreakEven(Shape48B(), {4, 4, Contiguous}, 2)), 1850, 10);
  EXPECT_NEAR(static_cast<double>(StateBreakEven(Shape48B(), {4, 4, Zigzag}, 2)), 3640, 70);
  // Exactly: M, B and the halo of a segment over what head sends for a row.
  const double summary = 3 * (32 * 128 * 256 * 4.0 + 3 * 3 * 4096 * 2.0), row = 1.5 * 2304 * 2;
  EXPECT_EQ(StateBreakEven(Shape48B(), {4, 4, Contiguous}, 2), static_cast<int64_t>(summary / row) + 1);
  EXPECT_EQ(StateBreakEven(Shape48B(), {4, 4, Zigzag}, 2), static_cast<int64_t>(2 * summary / row) + 1);
  // The whole model's choice turns at the same length, as nothing else differs between the two.
  for (const CpStrategy strategy : {Contiguous, Zigzag}) {
    const RankShape ranks{4, 4, strategy};
    EXPECT_EQ(CheapestModes(Shape48B(), EqualLinks(), ranks, 1 << 20).back(),
              (ModeRange{StateBreakEven(Shape48B(), ranks, 2), StepMode::kState}));
  }
}

TEST(Planner, SlowCallsMakeTpRightForShortPrompts) {
  Rates rates = EqualLinks();
  rates.tp.seconds_per_call = rates.cp.seconds_per_call = 1e5;
  const std::vector<ModeRange> ranges = CheapestModes(Shape48B(), rates, {4, 4, Contiguous}, 1 << 20);
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0], (ModeRange{1, StepMode::kTp}));
  EXPECT_EQ(ranges[1].mode, StepMode::kHead);
  EXPECT_EQ(ranges[2].mode, StepMode::kState);
  EXPECT_GT(ranges[1].rows, 1);
}

TEST(Planner, SlowArithmeticMakesStateDear) {
  Rates rates = EqualLinks();
  rates.flops_per_second = 1;
  const auto head = OfPrompt(StepMode::kHead, rates, {4, 4, Zigzag}, 8192);
  const auto state = OfPrompt(StepMode::kState, rates, {4, 4, Zigzag}, 8192);
  EXPECT_GT(state.compute, head.compute);
  EXPECT_EQ(CheapestModes(Shape48B(), rates, {4, 4, Zigzag}, 1 << 17).back().mode, StepMode::kTp);
}

// Over rates, ranks, strategies and batches: never dearer than any mode, and the lengths where the choice
// turns are those of a walk over every length.
TEST(Planner, TheChoiceIsTheCheapestOfASweep) {
  const ModelShape model = Shape48B();
  size_t chosen[5] = {};
  for (const double bytes : {1e9, 25e9, 350e9}) {
    for (const double latency : {0.0, 5e-6, 1e-4}) {
      for (const double flops : {1e11, 1e14, kForever}) {
        const Link link{bytes, latency};
        const Rates rates{link, link, link, flops, 2};
        for (const RankShape& ranks :
             {RankShape{2, 2, Zigzag}, {4, 4, Contiguous}, {8, 4, Zigzag}, {8, 8, Contiguous}}) {
          for (const auto& shapes : std::vector<std::vector<test::SpanShape>>{{{0, 1}},
                                                                              {{0, 700}},
                                                                              {{0, 5000}, {64, 9}},
                                                                              {{8192, 32768}},
                                                                              {{0, 60}, {0, 61}, {5, 62}}}) {
            const auto spans = MakeSpans(shapes);
            const ModeCost choice = ChooseMode(model, rates, ranks, spans);
            double cheapest = kForever;
            for (const StepMode mode : {StepMode::kTp, StepMode::kHead, StepMode::kState}) {
              cheapest = std::min(cheapest, CostOf(mode, model, rates, ranks, spans).total());
            }
            EXPECT_EQ(choice.total(), cheapest);
            ++chosen[static_cast<size_t>(choice.mode)];
          }
        }
      }
    }
  }
  // The sweep is no sweep if one mode always wins.
  for (const StepMode mode : kPlannedModes) EXPECT_GT(chosen[static_cast<size_t>(mode)], 0u);
}

TEST(Planner, RangesAreThoseOfEveryLength) {
  ModelShape model = Shape48B();
  model.attention.resize(4);
  const Link link{100e9, 2e-5};
  const Rates rates{link, link, link, 1e14, 2};
  for (const RankShape& ranks : {RankShape{4, 4, Contiguous}, {4, 2, Zigzag}}) {
    std::vector<ModeRange> walked;
    for (int64_t rows = 1; rows <= 6000; ++rows) {
      const batch::SeqSpan prompt{.q_len = rows, .kv_len = rows};
      const StepMode mode = ChooseMode(model, rates, ranks, {&prompt, 1}).mode;
      if (walked.empty() || walked.back().mode != mode) walked.push_back({rows, mode});
    }
    EXPECT_GT(walked.size(), 1u);
    EXPECT_EQ(CheapestModes(model, rates, ranks, 6000), walked);
  }
}

}  // namespace
}  // namespace perigee::parallel
