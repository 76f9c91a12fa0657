#include "parallel/segment_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "parallel/cp/cp_strategy.h"
#include "parallel/spans.h"

namespace perigee::parallel {
namespace {

using test::MakeSpans;
using Pieces = std::vector<Piece>;

Pieces OfSpan(const SegmentPlan& plan, int32_t span) {
  const auto pieces = plan.OfSpan(span);
  return {pieces.begin(), pieces.end()};
}

TEST(SegmentPlan, ZigzagInTheSequencesOrder) {
  const auto spans = MakeSpans({{5, 8}, {0, 3}});
  const SegmentPlan plan = MakeSegmentPlan(spans, Zigzag(spans, 2), {}, 1);
  EXPECT_EQ(plan.rank, 1);
  EXPECT_EQ(OfSpan(plan, 0), (Pieces{{0, 0, 2, 0, 0}, {0, 2, 2, 1, 0}, {0, 4, 2, 1, 2}, {0, 6, 2, 0, 2}}));
  // A span that is too short to split belongs to one rank.
  EXPECT_EQ(OfSpan(plan, 1).size(), 1u);
  EXPECT_EQ(OfSpan(plan, 1)[0].len, 3);
  // Each rank's own, as their rows lie there.
  for (size_t r = 0; r < 2; ++r) {
    int64_t row = 0;
    for (const size_t i : plan.ranks[r]) {
      EXPECT_EQ(plan.pieces[i].rank, static_cast<int>(r));
      EXPECT_EQ(plan.pieces[i].local_row, row);
      row += plan.pieces[i].len;
    }
  }
  EXPECT_EQ(plan.PiecesBefore(0, 2), 1);
  EXPECT_EQ(plan.PiecesBefore(0, 6), 3);
  EXPECT_EQ(plan.PiecesBefore(0, 8), 4);
  EXPECT_EQ(plan.PiecesBefore(1, 3), 1);
}

TEST(SegmentPlan, CutsEndPieces) {
  // Tokens 64 to 264 over two ranks: cuts inside each segment, at their border (164 is none) and at the end.
  const auto spans = MakeSpans({{0, 10}, {64, 200}});
  const std::vector<batch::StateSnapshot> cuts = {{1, 256, 7}, {1, 128, 5}, {1, 264, 9}};
  const SegmentPlan plan = MakeSegmentPlan(spans, Contiguous(spans, 2), cuts, 0);
  EXPECT_EQ(OfSpan(plan, 0), (Pieces{{0, 0, 5, 0, 0}, {0, 5, 5, 1, 0}}));
  EXPECT_EQ(OfSpan(plan, 1),
            (Pieces{{1, 0, 64, 0, 5}, {1, 64, 36, 0, 69}, {1, 100, 92, 1, 5}, {1, 192, 8, 1, 97}}));
  EXPECT_EQ(plan.PiecesBefore(1, 192), 3);
}

TEST(SegmentPlan, ACutWhereASegmentEndsAnyway) {
  const auto spans = MakeSpans({{0, 128}});
  const std::vector<batch::StateSnapshot> cuts = {{0, 64, 1}};
  EXPECT_EQ(MakeSegmentPlan(spans, Contiguous(spans, 2), cuts, 0).pieces,
            MakeSegmentPlan(spans, Contiguous(spans, 2), {}, 0).pieces);
}

TEST(SegmentPlanDeathTest, CutsOutsideTheNewRows) {
  const auto spans = MakeSpans({{64, 100}});
  for (const int64_t tokens : {64, 165}) {
    const std::vector<batch::StateSnapshot> cuts = {{0, tokens, 1}};
    EXPECT_DEATH(MakeSegmentPlan(spans, Contiguous(spans, 2), cuts, 0), "tokens");
  }
  EXPECT_DEATH(MakeSegmentPlan(spans, Contiguous(spans, 2), {}, 0).PiecesBefore(0, 51), "row");
}

}  // namespace
}  // namespace perigee::parallel
