#include "parallel/cp/cp_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "base/strings.h"
#include "parallel/cp/cp_strategy.h"

namespace perigee::parallel {

int64_t CpPlan::Rows(int rank) const {
  int64_t rows = 0;
  for (const Segment& s : ranks[static_cast<size_t>(rank)]) rows += s.len;
  return rows;
}

int64_t VisiblePairs(const batch::SeqSpan& span, const Segment& segment) {
  const int64_t before = span.prefix() + segment.begin;
  return segment.len * before + segment.len * (segment.len + 1) / 2;
}

void AssignWholeSpans(std::span<const batch::SeqSpan> spans, std::span<const int32_t> whole, CpPlan& plan) {
  std::vector<int64_t> load(plan.ranks.size(), 0);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const Segment& s : plan.ranks[r]) load[r] += VisiblePairs(spans[static_cast<size_t>(s.span)], s);
  }
  for (const int32_t i : whole) {
    const Segment segment{i, 0, spans[static_cast<size_t>(i)].q_len};
    if (segment.len == 0) continue;
    const auto least = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[least] += VisiblePairs(spans[static_cast<size_t>(i)], segment);
    plan.ranks[least].push_back(segment);
  }
}

void CheckPlan(std::span<const batch::SeqSpan> spans, const CpPlan& plan) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> runs(spans.size());
  for (const auto& segments : plan.ranks) {
    for (const Segment& s : segments) {
      PERIGEE_CHECK(s.span >= 0 && static_cast<size_t>(s.span) < spans.size() && s.len >= 1);
      runs[static_cast<size_t>(s.span)].emplace_back(s.begin, s.len);
    }
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    std::sort(runs[i].begin(), runs[i].end());
    int64_t next = 0;
    for (const auto& [begin, len] : runs[i]) {
      PERIGEE_CHECK_MSG(begin == next, StrCat("row ", next, " of span ", i, " has no owner or two"));
      next += len;
    }
    PERIGEE_CHECK_MSG(next == spans[i].q_len, StrCat("span ", i, " is not covered"));
  }
}

int64_t MaxLocalRows(int64_t rows, int64_t spans, int cp_size) {
  if (cp_size == 1) return rows;
  // A span of fewer than 2 cp_size rows may stay whole.
  return std::min(rows, CeilDiv<int64_t>(rows, cp_size) + 2 * cp_size * std::min(spans, rows));
}

}  // namespace perigee::parallel
