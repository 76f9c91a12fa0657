#include "parallel/cp/cp_strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/spans.h"

namespace perigee::parallel {
namespace {

using batch::SeqSpan;
using test::MakeSpans;
using test::SpanShape;

constexpr int kCpSizes[] = {1, 2, 3, 4, 8};

// Small enough to lay every mask out.
std::vector<std::vector<SpanShape>> SmallBatches() {
  std::vector<std::vector<SpanShape>> batches;
  for (int64_t len = 1; len <= 40; ++len) batches.push_back({{0, len}});
  for (const int64_t prefix : {1, 5, 64}) {
    for (const int64_t len : {1, 7, 8, 9, 16, 19, 65}) batches.push_back({{prefix, len}});
  }
  batches.push_back({{5, 19}, {0, 1}, {3, 33}, {0, 7}, {64, 2}, {0, 100}});
  batches.push_back({{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}});
  batches.push_back({{100, 1}, {0, 3}, {10, 5}, {0, 2}});
  batches.push_back({{2, 9}, {0, 10}});
  batches.push_back({});
  return batches;
}

// Pairs of a segment, row by row and key by key.
int64_t PairsOfMask(const SeqSpan& span, const Segment& segment) {
  int64_t pairs = 0;
  for (int64_t row = segment.begin; row < segment.begin + segment.len; ++row) {
    const int64_t position = span.kv_len - span.q_len + row;
    for (int64_t key = 0; key < span.kv_len; ++key) pairs += key <= position ? 1 : 0;
  }
  return pairs;
}

// Sizes of the blocks that `rows` rows are cut into: the first ones take the remainder.
std::vector<int64_t> BlockSizes(int64_t rows, int64_t blocks) {
  std::vector<int64_t> sizes(static_cast<size_t>(blocks), rows / blocks);
  for (int64_t b = 0; b < rows % blocks; ++b) ++sizes[static_cast<size_t>(b)];
  return sizes;
}

Segment Block(int32_t span, const std::vector<int64_t>& sizes, int64_t block) {
  Segment segment{span, 0, sizes[static_cast<size_t>(block)]};
  for (int64_t b = 0; b < block; ++b) segment.begin += sizes[static_cast<size_t>(b)];
  return segment;
}

// The documented local order of split spans, then whole spans in order on the rank with the fewest pairs.
struct Expected {
  std::vector<std::vector<Segment>> ranks;
  std::vector<int64_t> pairs;

  explicit Expected(int cp_size) : ranks(static_cast<size_t>(cp_size)), pairs(static_cast<size_t>(cp_size)) {}
  void Add(const SeqSpan& span, size_t rank, const Segment& segment) {
    ranks[rank].push_back(segment);
    pairs[rank] += PairsOfMask(span, segment);
  }
  void AddWhole(const std::vector<SeqSpan>& spans, int64_t min_split) {
    for (size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].q_len >= min_split) continue;
      size_t least = 0;
      for (size_t r = 1; r < pairs.size(); ++r) {
        if (pairs[r] < pairs[least]) least = r;
      }
      Add(spans[i], least, {static_cast<int32_t>(i), 0, spans[i].q_len});
    }
  }
};

std::vector<std::vector<Segment>> ExpectedZigzag(const std::vector<SeqSpan>& spans, int cp_size) {
  const int64_t blocks = 2 * cp_size;
  Expected expected(cp_size);
  for (int64_t r = 0; r < cp_size; ++r) {
    for (const int64_t block : {r, blocks - 1 - r}) {
      for (size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].q_len < blocks) continue;
        expected.Add(spans[i], static_cast<size_t>(r),
                     Block(static_cast<int32_t>(i), BlockSizes(spans[i].q_len, blocks), block));
      }
    }
  }
  expected.AddWhole(spans, blocks);
  return expected.ranks;
}

std::vector<std::vector<Segment>> ExpectedContiguous(const std::vector<SeqSpan>& spans, int cp_size) {
  Expected expected(cp_size);
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].q_len < cp_size) continue;
    for (int64_t r = 0; r < cp_size; ++r) {
      expected.Add(spans[i], static_cast<size_t>(r),
                   Block(static_cast<int32_t>(i), BlockSizes(spans[i].q_len, cp_size), r));
    }
  }
  expected.AddWhole(spans, cp_size);
  return expected.ranks;
}

// Every row of the strategy table keeps these.
class EveryCpStrategy : public ::testing::TestWithParam<std::string> {
 protected:
  static CpPlan Plan(const std::vector<SeqSpan>& spans, int cp_size) {
    return FindCpStrategy(GetParam()).value()(spans, cp_size);
  }
};

TEST_P(EveryCpStrategy, EveryRowHasExactlyOneOwner) {
  for (const int cp_size : kCpSizes) {
    for (const auto& shapes : SmallBatches()) {
      const std::vector<SeqSpan> spans = MakeSpans(shapes);
      const CpPlan plan = Plan(spans, cp_size);
      ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(cp_size));
      std::vector<std::vector<int>> owners(spans.size());
      for (size_t i = 0; i < spans.size(); ++i) owners[i].assign(static_cast<size_t>(spans[i].q_len), 0);
      for (const auto& segments : plan.ranks) {
        for (const Segment& s : segments) {
          EXPECT_GE(s.len, 1);
          auto& rows = owners[static_cast<size_t>(s.span)];
          ASSERT_LE(s.begin + s.len, static_cast<int64_t>(rows.size()));
          for (int64_t row = s.begin; row < s.begin + s.len; ++row) ++rows[static_cast<size_t>(row)];
        }
      }
      for (const auto& rows : owners) {
        EXPECT_EQ(std::count(rows.begin(), rows.end(), 1), static_cast<int64_t>(rows.size()));
      }
    }
  }
}

TEST_P(EveryCpStrategy, ARankHoldsASpansSegmentsInTheirOrder) {
  for (const int cp_size : kCpSizes) {
    for (const auto& shapes : SmallBatches()) {
      const std::vector<SeqSpan> spans = MakeSpans(shapes);
      for (const auto& segments : Plan(spans, cp_size).ranks) {
        std::vector<int64_t> last(spans.size(), -1);
        for (const Segment& s : segments) {
          EXPECT_GT(s.begin, last[static_cast<size_t>(s.span)]);
          last[static_cast<size_t>(s.span)] = s.begin;
        }
      }
    }
  }
}

TEST_P(EveryCpStrategy, VisibleKeysAreThoseOfTheMask) {
  for (const int cp_size : kCpSizes) {
    for (const auto& shapes : SmallBatches()) {
      const std::vector<SeqSpan> spans = MakeSpans(shapes);
      int64_t of_ranks = 0;
      for (const auto& segments : Plan(spans, cp_size).ranks) {
        for (const Segment& s : segments) {
          const SeqSpan& span = spans[static_cast<size_t>(s.span)];
          EXPECT_EQ(VisiblePairs(span, s), PairsOfMask(span, s));
          of_ranks += VisiblePairs(span, s);
        }
      }
      int64_t of_batch = 0;
      for (const SeqSpan& span : spans) of_batch += PairsOfMask(span, {span.seq, 0, span.q_len});
      EXPECT_EQ(of_ranks, of_batch);
    }
  }
}

TEST_P(EveryCpStrategy, RowsOfASplitSpanAreSpreadEvenly) {
  for (const int cp_size : kCpSizes) {
    for (int64_t len = 2 * cp_size; len < 6 * cp_size; ++len) {
      const CpPlan plan = Plan(MakeSpans({{3, len}}), cp_size);
      std::vector<int64_t> rows;
      for (int r = 0; r < cp_size; ++r) rows.push_back(plan.Rows(r));
      const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
      EXPECT_LE(*most - *least, 1) << "C " << cp_size << ", " << len << " rows";
    }
  }
}

TEST_P(EveryCpStrategy, OneRowHasOneOwnerAndOtherRanksNothing) {
  for (const int cp_size : kCpSizes) {
    const CpPlan plan = Plan(MakeSpans({{17, 1}}), cp_size);
    EXPECT_EQ(plan.ranks[0], (std::vector<Segment>{{0, 0, 1}}));
    for (size_t r = 1; r < plan.ranks.size(); ++r) EXPECT_TRUE(plan.ranks[r].empty());
  }
}

TEST_P(EveryCpStrategy, OneRankHoldsEverything) {
  const CpPlan plan = Plan(MakeSpans({{5, 19}, {0, 1}, {2, 40}}), 1);
  std::vector<int64_t> rows(3, 0);
  for (const Segment& s : plan.ranks[0]) {
    EXPECT_EQ(s.begin, rows[static_cast<size_t>(s.span)]);
    rows[static_cast<size_t>(s.span)] += s.len;
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{19, 1, 40}));
}

TEST_P(EveryCpStrategy, AStepWithoutRowsLeavesEveryRankEmpty) {
  for (const auto& segments : Plan({}, 4).ranks) EXPECT_TRUE(segments.empty());
}

TEST_P(EveryCpStrategy, LongPromptsBesideAShortOne) {
  const std::vector<SeqSpan> spans = MakeSpans({{0, 100000}, {0, 200000}, {0, 64}});
  const CpPlan plan = Plan(spans, 4);
  CheckPlan(spans, plan);
  int64_t pairs = 0;
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(plan.Rows(r), 25000 + 50000 + 16);
    for (const Segment& s : plan.ranks[static_cast<size_t>(r)]) {
      pairs += VisiblePairs(spans[static_cast<size_t>(s.span)], s);
    }
  }
  EXPECT_EQ(pairs, int64_t{100000} * 100001 / 2 + int64_t{200000} * 200001 / 2 + 64 * 65 / 2);
}

INSTANTIATE_TEST_SUITE_P(Table, EveryCpStrategy, ::testing::ValuesIn(CpStrategyNames()),
                         [](const auto& param_info) { return param_info.param; });

TEST(CpStrategy, ZigzagKeepsItsLocalOrder) {
  for (const int cp_size : kCpSizes) {
    for (const auto& shapes : SmallBatches()) {
      const std::vector<SeqSpan> spans = MakeSpans(shapes);
      EXPECT_EQ(Zigzag(spans, cp_size).ranks, ExpectedZigzag(spans, cp_size));
    }
  }
}

TEST(CpStrategy, ContiguousKeepsItsLocalOrder) {
  for (const int cp_size : kCpSizes) {
    for (const auto& shapes : SmallBatches()) {
      const std::vector<SeqSpan> spans = MakeSpans(shapes);
      EXPECT_EQ(Contiguous(spans, cp_size).ranks, ExpectedContiguous(spans, cp_size));
    }
  }
}

TEST(CpStrategy, ZigzagBalancesEverySplitSpan) {
  for (const int cp_size : kCpSizes) {
    for (const int64_t prefix : {0, 1, 5, 64, 4096}) {
      for (int64_t len = 2 * cp_size; len <= 10 * cp_size; ++len) {
        const std::vector<SeqSpan> spans = MakeSpans({{prefix, len}});
        std::vector<int64_t> pairs;
        for (const auto& segments : Zigzag(spans, cp_size).ranks) {
          pairs.push_back(0);
          for (const Segment& s : segments) pairs.back() += VisiblePairs(spans[0], s);
        }
        const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
        EXPECT_LT(*most - *least, 2 * (prefix + len))
            << "C " << cp_size << ", prefix " << prefix << ", " << len << " rows";
      }
    }
  }
}

TEST(CpStrategy, ZigzagOfEqualBlocksIsBalancedExactly) {
  const std::vector<SeqSpan> spans = MakeSpans({{0, 100000}});
  for (const auto& segments : Zigzag(spans, 4).ranks) {
    ASSERT_EQ(segments.size(), 2u);
    EXPECT_EQ(VisiblePairs(spans[0], segments[0]) + VisiblePairs(spans[0], segments[1]),
              int64_t{100000} * 100001 / 2 / 4);
  }
}

TEST(CpStrategy, ZigzagWorkedExample) {
  const std::vector<SeqSpan> spans = MakeSpans({{5, 19}});
  const CpPlan plan = Zigzag(spans, 4);
  // Blocks of 3 3 3 2 2 2 2 2 rows.
  EXPECT_EQ(plan.ranks[0], (std::vector<Segment>{{0, 0, 3}, {0, 17, 2}}));
  EXPECT_EQ(plan.ranks[1], (std::vector<Segment>{{0, 3, 3}, {0, 15, 2}}));
  EXPECT_EQ(plan.ranks[2], (std::vector<Segment>{{0, 6, 3}, {0, 13, 2}}));
  EXPECT_EQ(plan.ranks[3], (std::vector<Segment>{{0, 9, 2}, {0, 11, 2}}));
  EXPECT_EQ(plan.Rows(0), 5);
  EXPECT_EQ(plan.Rows(3), 4);
}

TEST(CpStrategy, ShortSpansGoWholeToTheLeastLoadedRank) {
  // Visible pairs, in order: 455, 6, 15, 3.
  const CpPlan plan = Zigzag(MakeSpans({{90, 5}, {0, 3}, {0, 5}, {0, 2}}), 3);
  EXPECT_EQ(plan.ranks[0], (std::vector<Segment>{{0, 0, 5}}));
  EXPECT_EQ(plan.ranks[1], (std::vector<Segment>{{1, 0, 3}, {3, 0, 2}}));
  EXPECT_EQ(plan.ranks[2], (std::vector<Segment>{{2, 0, 5}}));
}

TEST(CpStrategy, ShortSpansFillUpWhatSplitSpansLeaveUneven) {
  // Of the second span the ranks have 68, 73, 78 and 66 pairs.
  const std::vector<SeqSpan> spans = MakeSpans({{0, 1}, {5, 19}});
  const CpPlan plan = Zigzag(spans, 4);
  EXPECT_EQ(plan.ranks[3], (std::vector<Segment>{{1, 9, 2}, {1, 11, 2}, {0, 0, 1}}));
}

TEST(CpStrategy, AnUnknownNameListsTheKnownOnes) {
  const StatusOr<CpStrategy> strategy = FindCpStrategy("ring");
  ASSERT_FALSE(strategy.ok());
  EXPECT_EQ(strategy.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(strategy.status().message(), "unknown CP strategy \"ring\"; accepted: zigzag, contiguous");
}

TEST(CpStrategyDeathTest, APlanThatLeavesARowOutIsCaught) {
  const std::vector<SeqSpan> spans = MakeSpans({{0, 4}});
  CpPlan plan;
  plan.ranks = {{{0, 0, 2}}, {{0, 3, 1}}};
  EXPECT_DEATH(CheckPlan(spans, plan), "row 2 of span 0 has no owner or two");
  plan.ranks = {{{0, 0, 3}}, {{0, 2, 2}}};
  EXPECT_DEATH(CheckPlan(spans, plan), "row 3 of span 0 has no owner or two");
  plan.ranks = {{{0, 0, 3}}, {}};
  EXPECT_DEATH(CheckPlan(spans, plan), "span 0 is not covered");
}

}  // namespace
}  // namespace perigee::parallel
