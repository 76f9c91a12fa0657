#include "parallel/row_partition.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace perigee::parallel {

RowPartition::RowPartition(std::vector<int64_t> counts, std::vector<int64_t> order, int rank)
    : counts_(std::move(counts)), order_(std::move(order)), rank_(rank) {
  PERIGEE_CHECK(rank >= 0 && static_cast<size_t>(rank) < counts_.size());
}

RowPartition RowPartition::Whole(int64_t rows) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  return {{rows}, std::move(order), 0};
}

RowPartition RowPartition::FromPlan(std::span<const batch::SeqSpan> spans, const CpPlan& plan, int rank) {
  CheckPlan(spans, plan);
  std::vector<int64_t> counts;
  std::vector<int64_t> order;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    counts.push_back(plan.Rows(static_cast<int>(r)));
    for (const Segment& s : plan.ranks[r]) {
      const int64_t first = spans[static_cast<size_t>(s.span)].q_begin + s.begin;
      for (int64_t i = 0; i < s.len; ++i) order.push_back(first + i);
    }
  }
  return {std::move(counts), std::move(order), rank};
}

std::span<const int64_t> RowPartition::local() const {
  const int64_t begin = std::accumulate(counts_.begin(), counts_.begin() + rank_, int64_t{0});
  return std::span<const int64_t>(order_).subspan(static_cast<size_t>(begin),
                                                  static_cast<size_t>(local_rows()));
}

RowPartition RowPartition::Select(std::span<const int64_t> rows, std::vector<int64_t>* local_places) const {
  std::vector<int64_t> counts(counts_.size(), 0);
  std::vector<int64_t> order;
  size_t place = 0;
  for (size_t r = 0; r < counts_.size(); ++r) {
    for (int64_t i = 0; i < counts_[r]; ++i, ++place) {
      const auto found = std::lower_bound(rows.begin(), rows.end(), order_[place]);
      if (found == rows.end() || *found != order_[place]) continue;
      order.push_back(found - rows.begin());
      ++counts[r];
      if (static_cast<int>(r) == rank_ && local_places != nullptr) local_places->push_back(i);
    }
  }
  PERIGEE_CHECK_MSG(order.size() == rows.size(), "a chosen row is not part of the step");
  return {std::move(counts), std::move(order), rank_};
}

}  // namespace perigee::parallel
