#include "parallel/segment_scan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "comm/communicator.h"
#include "kernels/kda/kda_summary.h"

namespace perigee::parallel {
namespace {

int64_t PieceFloats(const Piece& piece, const ScanShape& shape) {
  return shape.StateFloats() + (piece.begin == 0 ? 0 : shape.TransitionFloats());
}

}  // namespace

int64_t SegmentScan::SentBy(const SegmentPlan& plan, const ScanShape& shape, int rank) {
  int64_t floats = 0;
  for (const size_t i : plan.ranks[static_cast<size_t>(rank)]) floats += PieceFloats(plan.pieces[i], shape);
  return floats;
}

SegmentScan::SegmentScan(const ParallelContext& parallel, const SegmentPlan& plan,
                         const kernels::KernelContext& context, const ScanShape& shape)
    : parallel_(parallel), plan_(plan), context_(context), shape_(shape), piece_at_(plan.pieces.size()) {
  int64_t at = 0;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    counts_.push_back(SentBy(plan, shape, static_cast<int>(r)));
    for (const size_t i : plan.ranks[r]) {
      piece_at_[i] = at;
      at += PieceFloats(plan.pieces[i], shape);
    }
  }
  const auto rank = static_cast<size_t>(plan.rank);
  send_ = context.workspace->Floats(counts_[rank]);
  float* next = send_;
  for (const size_t i : plan.ranks[rank]) {
    Own own{.piece = plan.pieces[i]};
    if (own.piece.begin > 0) {
      own.transition = next;
      next += shape.TransitionFloats();
    }
    own.state = next;
    next += shape.StateFloats();
    own_.push_back(own);
  }
}

Status SegmentScan::Gather() {
  const int64_t total = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  float* gathered = context_.workspace->Floats(total);
  const int64_t own = counts_[static_cast<size_t>(plan_.rank)];
  PERIGEE_RETURN_IF_ERROR(parallel_.cp_group->AllGather({send_, static_cast<size_t>(own)},
                                                        {gathered, static_cast<size_t>(total)}, counts_));
  gathered_ = gathered;
  return Status::Ok();
}

void SegmentScan::Fold(std::vector<Wish> wishes) const {
  PERIGEE_CHECK(gathered_ != nullptr);
  std::stable_sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) {
    return a.span != b.span ? a.span < b.span : a.row < b.row;
  });
  std::vector<kernels::KdaFoldStep> steps(plan_.pieces.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const float* at = gathered_ + piece_at_[i];
    if (plan_.pieces[i].begin == 0) {
      steps[i].state = at;
    } else {
      steps[i] = {.transition = at, .state = at + shape_.TransitionFloats()};
    }
  }
  std::vector<kernels::KdaFoldOutput> outputs;
  for (const Wish& w : wishes) {
    outputs.push_back({plan_.PiecesBefore(w.span, w.row), w.head_begin, w.head_end, w.state});
  }
  std::vector<kernels::KdaFoldChain> chains;
  for (size_t first = 0, past = 0; first < wishes.size(); first = past) {
    while (past < wishes.size() && wishes[past].span == wishes[first].span) ++past;
    const auto span = static_cast<size_t>(wishes[first].span);
    const size_t begin = plan_.span_begin[span];
    chains.push_back({.steps = std::span(steps).subspan(begin, plan_.span_begin[span + 1] - begin),
                      .outputs = std::span(outputs).subspan(first, past - first)});
  }
  kernels::KdaFold(context_, {shape_.num_heads, shape_.key_dim, shape_.value_dim, chains});
}

}  // namespace perigee::parallel
