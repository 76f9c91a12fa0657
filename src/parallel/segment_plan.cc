#include "parallel/segment_plan.h"

#include <algorithm>

#include "base/check.h"

namespace perigee::parallel {
namespace {

// Rows of each span, relative to its first, at which a piece has to end; ascending.
std::vector<std::vector<int64_t>> CutRows(std::span<const batch::SeqSpan> spans,
                                          std::span<const batch::StateSnapshot> cuts) {
  std::vector<std::vector<int64_t>> rows(spans.size());
  for (const batch::StateSnapshot& cut : cuts) {
    const batch::SeqSpan& span = spans[static_cast<size_t>(cut.seq)];
    PERIGEE_CHECK(cut.tokens > span.prefix() && cut.tokens <= span.kv_len);
    rows[static_cast<size_t>(cut.seq)].push_back(cut.tokens - span.prefix());
  }
  for (std::vector<int64_t>& r : rows) std::sort(r.begin(), r.end());
  return rows;
}

}  // namespace

std::span<const Piece> SegmentPlan::OfSpan(int32_t span) const {
  const auto s = static_cast<size_t>(span);
  return std::span<const Piece>(pieces).subspan(span_begin[s], span_begin[s + 1] - span_begin[s]);
}

int64_t SegmentPlan::PiecesBefore(int32_t span, int64_t row) const {
  const std::span<const Piece> all = OfSpan(span);
  const auto past = std::lower_bound(all.begin(), all.end(), row,
                                     [](const Piece& piece, int64_t r) { return piece.begin < r; });
  PERIGEE_CHECK(past != all.begin() && (past - 1)->end() == row);
  return past - all.begin();
}

SegmentPlan MakeSegmentPlan(std::span<const batch::SeqSpan> spans, const CpPlan& plan,
                            std::span<const batch::StateSnapshot> cuts, int rank) {
  SegmentPlan result;
  result.rank = rank;
  result.spans.assign(spans.begin(), spans.end());
  const std::vector<std::vector<int64_t>> cut_rows = CutRows(spans, cuts);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    int64_t local_row = 0;
    for (const Segment& s : plan.ranks[r]) {
      const std::vector<int64_t>& rows = cut_rows[static_cast<size_t>(s.span)];
      for (int64_t begin = s.begin; begin < s.begin + s.len;) {
        const auto cut = std::upper_bound(rows.begin(), rows.end(), begin);
        const int64_t end = std::min(s.begin + s.len, cut == rows.end() ? s.begin + s.len : *cut);
        result.pieces.push_back({s.span, begin, end - begin, static_cast<int>(r), local_row});
        local_row += end - begin;
        begin = end;
      }
    }
  }
  std::sort(result.pieces.begin(), result.pieces.end(), [](const Piece& a, const Piece& b) {
    return a.span != b.span ? a.span < b.span : a.begin < b.begin;
  });
  result.ranks.resize(plan.ranks.size());
  result.span_begin.assign(spans.size() + 1, 0);
  for (size_t i = 0; i < result.pieces.size(); ++i) {
    result.ranks[static_cast<size_t>(result.pieces[i].rank)].push_back(i);
    result.span_begin[static_cast<size_t>(result.pieces[i].span) + 1] = i + 1;
  }
  for (std::vector<size_t>& own : result.ranks) {
    std::sort(own.begin(), own.end(),
              [&](size_t a, size_t b) { return result.pieces[a].local_row < result.pieces[b].local_row; });
  }
  return result;
}

}  // namespace perigee::parallel
