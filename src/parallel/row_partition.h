#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/seq_span.h"
#include "parallel/cp/cp_plan.h"

namespace perigee::parallel {

// How the rows of a step lie over the ranks of a CP group. Row numbers are in the step's token order. A plain
// value, equal on every rank but for `rank`.
class RowPartition {
 public:
  // One rank that holds everything.
  static RowPartition Whole(int64_t rows);
  static RowPartition FromPlan(std::span<const batch::SeqSpan> spans, const CpPlan& plan, int rank);

  int64_t total_rows() const { return static_cast<int64_t>(order_.size()); }
  int64_t local_rows() const { return counts_[static_cast<size_t>(rank_)]; }
  // Rows that each rank holds.
  std::span<const int64_t> counts() const { return counts_; }
  // The ranks' rows one rank after another, each in local order: order()[i] is the row at place i of a
  // gather.
  std::span<const int64_t> order() const { return order_; }
  // The part of order() that this rank holds.
  std::span<const int64_t> local() const;

  // The partition of some rows, numbered by their place in `rows` (ascending), owned as here. If given,
  // `local_places` receives where this rank's chosen rows stand among its rows.
  RowPartition Select(std::span<const int64_t> rows, std::vector<int64_t>* local_places) const;

 private:
  RowPartition(std::vector<int64_t> counts, std::vector<int64_t> order, int rank);

  std::vector<int64_t> counts_;
  std::vector<int64_t> order_;
  int rank_ = 0;
};

}  // namespace perigee::parallel
