#include "parallel/step_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "parallel/spans.h"

namespace perigee::parallel {
namespace {

using test::MakeSpans;
using test::SpanShape;
// seq, q_begin, q_len, kv_len.
using Flat = std::vector<std::tuple<int32_t, int64_t, int64_t, int64_t>>;

Flat Flatten(const std::vector<batch::SeqSpan>& spans) {
  Flat flat;
  for (const batch::SeqSpan& s : spans) flat.emplace_back(s.seq, s.q_begin, s.q_len, s.kv_len);
  return flat;
}

batch::ForwardBatch Batch(const std::vector<SpanShape>& shapes) {
  batch::ForwardBatch batch;
  batch.spans = MakeSpans(shapes);
  int64_t rows = 0;
  for (const SpanShape& s : shapes) rows += s.len;
  batch.token_ids.assign(static_cast<size_t>(rows), 0);
  return batch;
}

ParallelContext Rank(int tp, int attn_cp, int cp_rank) {
  return {.tp = tp, .attn_cp = attn_cp, .rank = cp_rank * (tp / attn_cp), .cp_rank = cp_rank};
}

TEST(StepLayout, ZigzagSpansOfTheWorkedExample) {
  const batch::ForwardBatch batch = Batch({{5, 19}});
  const std::vector<Flat> expected = {{{0, 0, 3, 8}, {0, 3, 2, 24}},
                                      {{0, 0, 3, 11}, {0, 3, 2, 22}},
                                      {{0, 0, 3, 14}, {0, 3, 2, 20}},
                                      {{0, 0, 2, 16}, {0, 2, 2, 18}}};
  for (const StepMode mode : {StepMode::kHead, StepMode::kReplicated}) {
    for (int rank = 0; rank < 4; ++rank) {
      const StepLayout layout = MakeStepLayout(mode, batch, Zigzag, Rank(4, 4, rank));
      EXPECT_EQ(layout.mode, mode);
      EXPECT_EQ(Flatten(layout.local_spans), expected[static_cast<size_t>(rank)]);
      EXPECT_EQ(layout.rows.local_rows(), rank == 3 ? 4 : 5);
    }
  }
}

TEST(StepLayout, SpansOfSeveralSequencesFollowTheLocalOrder) {
  // Rank 1 of 2: the middle blocks of sequences 0 and 2 in turn, then sequence 1 whole. Visible pairs of
  // sequences 0 and 2 are 34 and 33, so the short one goes to rank 1.
  const batch::ForwardBatch batch = Batch({{0, 8}, {0, 1}, {3, 5}});
  const StepLayout first = MakeStepLayout(StepMode::kHead, batch, Zigzag, Rank(4, 2, 0));
  const StepLayout second = MakeStepLayout(StepMode::kHead, batch, Zigzag, Rank(4, 2, 1));
  EXPECT_EQ(Flatten(first.local_spans), (Flat{{0, 0, 2, 2}, {2, 2, 2, 5}, {0, 4, 2, 8}, {2, 6, 1, 8}}));
  EXPECT_EQ(Flatten(second.local_spans),
            (Flat{{0, 0, 2, 4}, {2, 2, 1, 6}, {0, 3, 2, 6}, {2, 5, 1, 7}, {1, 6, 1, 1}}));
  EXPECT_EQ(first.rows.total_rows(), 14);
}

TEST(StepLayout, ContiguousSpans) {
  const batch::ForwardBatch batch = Batch({{5, 19}});
  const StepLayout layout = MakeStepLayout(StepMode::kHead, batch, Contiguous, Rank(4, 4, 2));
  EXPECT_EQ(Flatten(layout.local_spans), (Flat{{0, 0, 5, 20}}));
}

TEST(StepLayout, OneRowLeavesOtherRanksWithoutSpans) {
  const batch::ForwardBatch batch = Batch({{7, 1}});
  EXPECT_EQ(Flatten(MakeStepLayout(StepMode::kHead, batch, Zigzag, Rank(4, 4, 0)).local_spans),
            (Flat{{0, 0, 1, 8}}));
  for (int rank = 1; rank < 4; ++rank) {
    const StepLayout layout = MakeStepLayout(StepMode::kHead, batch, Zigzag, Rank(4, 4, rank));
    EXPECT_TRUE(layout.local_spans.empty());
    EXPECT_EQ(layout.rows.local_rows(), 0);
    EXPECT_EQ(layout.rows.total_rows(), 1);
  }
}

TEST(StepLayout, DecodeTpAndOneCpRankHoldEverything) {
  const batch::ForwardBatch batch = Batch({{5, 19}, {2, 1}});
  const auto expect_whole = [&](const StepLayout& layout) {
    EXPECT_EQ(Flatten(layout.local_spans), Flatten(batch.spans));
    EXPECT_EQ(layout.rows.local_rows(), 20);
    EXPECT_EQ(layout.rows.counts().size(), 1u);
  };
  for (const StepMode mode : {StepMode::kDecode, StepMode::kTp}) {
    for (int rank = 0; rank < 4; ++rank) {
      expect_whole(MakeStepLayout(mode, batch, Zigzag, Rank(4, 4, rank)));
    }
  }
  for (const StepMode mode : {StepMode::kHead, StepMode::kReplicated}) {
    expect_whole(MakeStepLayout(mode, batch, Zigzag, Rank(4, 1, 0)));
  }
}

TEST(SelectSpans, NeighboursBecomeOneSpan) {
  const auto spans = MakeSpans({{5, 4}, {0, 3}, {9, 2}});
  const std::vector<int64_t> places = {1, 2, 3, 4, 6, 8};
  // Row 4 begins the second sequence: a neighbour of row 3 but not of its span.
  EXPECT_EQ(Flatten(SelectSpans(spans, places)),
            (Flat{{0, 0, 3, 9}, {1, 3, 1, 1}, {1, 4, 1, 3}, {2, 5, 1, 11}}));
}

TEST(SelectSpans, AllRowsAreTheSpansAndNoneIsNone) {
  const auto spans = MakeSpans({{5, 4}, {0, 3}});
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Flatten(SelectSpans(spans, all)), Flatten(spans));
  EXPECT_TRUE(SelectSpans(spans, {}).empty());
}

TEST(SelectSpans, LastRowsOfZigzagSpans) {
  const batch::ForwardBatch batch = Batch({{5, 19}});
  const StepLayout layout = MakeStepLayout(StepMode::kHead, batch, Zigzag, Rank(4, 4, 0));
  std::vector<int64_t> places;
  const std::vector<int64_t> wanted = {18};
  layout.rows.Select(wanted, &places);
  EXPECT_EQ(Flatten(SelectSpans(layout.local_spans, places)), (Flat{{0, 0, 1, 24}}));
}

TEST(SelectSpansDeathTest, APlaceBehindTheLastRowIsCaught) {
  const auto spans = MakeSpans({{0, 2}});
  const std::vector<int64_t> places = {0, 2};
  EXPECT_DEATH(SelectSpans(spans, places), "next == places.size");
}

}  // namespace
}  // namespace perigee::parallel
