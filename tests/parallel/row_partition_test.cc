#include "parallel/row_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/cp/cp_strategy.h"
#include "parallel/spans.h"

namespace perigee::parallel {
namespace {

using test::MakeSpans;
using Rows = std::vector<int64_t>;

Rows Copy(std::span<const int64_t> rows) {
  return {rows.begin(), rows.end()};
}

RowPartition WorkedExample(int rank) {
  const auto spans = MakeSpans({{5, 19}});
  return RowPartition::FromPlan(spans, Zigzag(spans, 4), rank);
}

TEST(RowPartition, WholeIsOneRankWithRowsInOrder) {
  const RowPartition whole = RowPartition::Whole(4);
  EXPECT_EQ(whole.total_rows(), 4);
  EXPECT_EQ(whole.local_rows(), 4);
  EXPECT_EQ(Copy(whole.counts()), (Rows{4}));
  EXPECT_EQ(Copy(whole.order()), (Rows{0, 1, 2, 3}));
  EXPECT_EQ(Copy(whole.local()), (Rows{0, 1, 2, 3}));
  EXPECT_EQ(RowPartition::Whole(0).total_rows(), 0);
}

TEST(RowPartition, OrderIsThatOfTheRanksOneAfterAnother) {
  const Rows order = {0, 1, 2, 17, 18, 3, 4, 5, 15, 16, 6, 7, 8, 13, 14, 9, 10, 11, 12};
  const std::vector<Rows> local = {{0, 1, 2, 17, 18}, {3, 4, 5, 15, 16}, {6, 7, 8, 13, 14}, {9, 10, 11, 12}};
  for (int rank = 0; rank < 4; ++rank) {
    const RowPartition rows = WorkedExample(rank);
    EXPECT_EQ(rows.total_rows(), 19);
    EXPECT_EQ(Copy(rows.counts()), (Rows{5, 5, 5, 4}));
    EXPECT_EQ(Copy(rows.order()), order);
    EXPECT_EQ(Copy(rows.local()), local[static_cast<size_t>(rank)]);
    EXPECT_EQ(rows.local_rows(), static_cast<int64_t>(local[static_cast<size_t>(rank)].size()));
  }
}

TEST(RowPartition, RowNumbersCountOverTheWholeStep) {
  const auto spans = MakeSpans({{0, 3}, {7, 5}});
  // Two ranks: 5 rows are 4 blocks of 2 1 1 1; the 3 rows go to the second rank, which is no heavier.
  const CpPlan plan = Zigzag(spans, 2);
  EXPECT_EQ(Copy(RowPartition::FromPlan(spans, plan, 0).local()), (Rows{3, 4, 7}));
  EXPECT_EQ(Copy(RowPartition::FromPlan(spans, plan, 1).local()), (Rows{5, 6, 0, 1, 2}));
}

TEST(RowPartition, RanksWithoutRows) {
  const auto spans = MakeSpans({{0, 1}});
  const CpPlan plan = Zigzag(spans, 4);
  EXPECT_EQ(Copy(RowPartition::FromPlan(spans, plan, 0).local()), (Rows{0}));
  for (int rank = 1; rank < 4; ++rank) {
    const RowPartition rows = RowPartition::FromPlan(spans, plan, rank);
    EXPECT_EQ(rows.local_rows(), 0);
    EXPECT_TRUE(rows.local().empty());
    EXPECT_EQ(Copy(rows.counts()), (Rows{1, 0, 0, 0}));
  }
}

TEST(RowPartition, EveryRankSeesTheSameOrderForEveryStrategy) {
  const auto spans = MakeSpans({{5, 19}, {0, 1}, {0, 33}, {2, 7}});
  for (const std::string& name : CpStrategyNames()) {
    const CpPlan plan = FindCpStrategy(name).value()(spans, 4);
    const Rows order = Copy(RowPartition::FromPlan(spans, plan, 0).order());
    Rows joined;
    for (int rank = 0; rank < 4; ++rank) {
      const RowPartition rows = RowPartition::FromPlan(spans, plan, rank);
      EXPECT_EQ(Copy(rows.order()), order);
      joined.insert(joined.end(), rows.local().begin(), rows.local().end());
    }
    EXPECT_EQ(joined, order);
    std::sort(joined.begin(), joined.end());
    for (size_t i = 0; i < joined.size(); ++i) EXPECT_EQ(joined[i], static_cast<int64_t>(i));
    EXPECT_EQ(joined.size(), 60u);
  }
}

TEST(RowPartition, SelectKeepsOwnersAndNumbersByPlace) {
  // Ranks 0 (rows 1 and 18) and 3 (row 11) own the chosen rows.
  const Rows chosen = {1, 11, 18};
  const std::vector<Rows> places = {{1, 4}, {}, {}, {2}};
  const std::vector<Rows> local = {{0, 2}, {}, {}, {1}};
  for (int rank = 0; rank < 4; ++rank) {
    Rows local_places;
    const RowPartition selected = WorkedExample(rank).Select(chosen, &local_places);
    EXPECT_EQ(selected.total_rows(), 3);
    EXPECT_EQ(Copy(selected.counts()), (Rows{2, 0, 0, 1}));
    EXPECT_EQ(Copy(selected.order()), (Rows{0, 2, 1}));
    EXPECT_EQ(Copy(selected.local()), local[static_cast<size_t>(rank)]);
    EXPECT_EQ(local_places, places[static_cast<size_t>(rank)]);
  }
}

TEST(RowPartition, SelectOfAllOrNoRows) {
  const RowPartition rows = WorkedExample(2);
  Rows all(19);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const RowPartition same = rows.Select(all, nullptr);
  EXPECT_EQ(Copy(same.order()), Copy(rows.order()));
  EXPECT_EQ(Copy(same.counts()), Copy(rows.counts()));
  const RowPartition none = rows.Select({}, nullptr);
  EXPECT_EQ(none.total_rows(), 0);
  EXPECT_EQ(Copy(none.counts()), (Rows{0, 0, 0, 0}));
}

TEST(RowPartitionDeathTest, ARowThatIsNotThereIsCaught) {
  const Rows chosen = {3, 19};
  EXPECT_DEATH(WorkedExample(0).Select(chosen, nullptr), "a chosen row is not part of the step");
}

}  // namespace
}  // namespace perigee::parallel
