#include "parallel/halo_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "comm/communicator.h"

namespace perigee::parallel {
namespace {

int64_t KeptRows(const Piece& piece, const HaloShape& shape) {
  return std::min(shape.history, piece.len);
}

int64_t EntryFloats(const HaloShape& shape, int64_t ranks) {
  return shape.history * shape.parts * (shape.width / ranks) + shape.state;
}

}  // namespace

HaloExchange::HaloExchange(const SegmentPlan& plan, const HaloShape& shape)
    : plan_(&plan),
      shape_(shape),
      ranks_(static_cast<int64_t>(plan.ranks.size())),
      piece_at_(plan.pieces.size()) {
  PERIGEE_CHECK(shape.width % ranks_ == 0);
  int64_t entries = 0;
  for (const batch::SeqSpan& span : plan.spans) entry_number_.push_back(span.prefix() > 0 ? entries++ : -1);
  int64_t at = 0;
  for (const std::vector<size_t>& own : plan.ranks) {
    const int64_t begin = at;
    for (const size_t i : own) {
      piece_at_[i] = at;
      at += KeptRows(plan.pieces[i], shape) * shape.parts * shape.width;
    }
    entries_at_.push_back(at);
    at += entries * EntryFloats(shape, ranks_);
    counts_.push_back(at - begin);
  }
}

int64_t HaloExchange::SentBy(const SegmentPlan& plan, const HaloShape& shape, int rank) {
  return HaloExchange(plan, shape).counts_[static_cast<size_t>(rank)];
}

StatusOr<HaloExchange> HaloExchange::Run(const ParallelContext& parallel, const SegmentPlan& plan,
                                         const kernels::KernelContext& context, const HaloShape& shape,
                                         ConstMatrixF rows, std::span<const EntryShare> entries) {
  PERIGEE_CHECK(rows.cols == shape.parts * shape.width && entries.size() == plan.spans.size());
  HaloExchange halo(plan, shape);
  const auto own = static_cast<size_t>(plan.rank);
  int64_t total = 0;
  for (const int64_t count : halo.counts_) total += count;
  float* send = context.workspace->Floats(halo.counts_[own]);
  float* gathered = context.workspace->Floats(total);
  halo.Fill(rows, entries, send);
  PERIGEE_RETURN_IF_ERROR(parallel.cp_group->AllGather({send, static_cast<size_t>(halo.counts_[own])},
                                                       {gathered, static_cast<size_t>(total)}, halo.counts_));
  halo.gathered_ = gathered;
  return halo;
}

void HaloExchange::Fill(ConstMatrixF rows, std::span<const EntryShare> entries, float* send) const {
  for (const size_t i : plan_->ranks[static_cast<size_t>(plan_->rank)]) {
    const Piece& piece = plan_->pieces[i];
    const int64_t kept = KeptRows(piece, shape_);
    for (int64_t r = piece.len - kept; r < piece.len; ++r) {
      send = std::copy_n(rows.Row(piece.local_row + r), rows.cols, send);
    }
  }
  for (size_t s = 0; s < entries.size(); ++s) {
    if (entry_number_[s] < 0) continue;
    send = std::copy_n(entries[s].conv, shape_.history * shape_.parts * ShareWidth(), send);
    send = std::copy_n(entries[s].state, shape_.state, send);
  }
}

const float* HaloExchange::Entry(int32_t span, int64_t rank) const {
  const int64_t number = entry_number_[static_cast<size_t>(span)];
  PERIGEE_CHECK(number >= 0);
  return gathered_ + entries_at_[static_cast<size_t>(rank)] + number * EntryFloats(shape_, ranks_);
}

const float* HaloExchange::SentRow(int32_t span, int64_t row) const {
  if (row < 0) return nullptr;
  const std::span<const Piece> pieces = plan_->OfSpan(span);
  const auto next = std::upper_bound(pieces.begin(), pieces.end(), row,
                                     [](int64_t r, const Piece& piece) { return r < piece.begin; });
  const Piece& piece = *(next - 1);
  const int64_t place = row - (piece.end() - KeptRows(piece, shape_));
  PERIGEE_CHECK_MSG(place >= 0, "only the last rows of a piece were sent");
  const size_t number = static_cast<size_t>(&piece - plan_->pieces.data());
  return gathered_ + piece_at_[number] + place * shape_.parts * shape_.width;
}

void HaloExchange::CopyChannels(int32_t span, int64_t row, int64_t part, int64_t begin, int64_t count,
                                float* out) const {
  if (const float* sent = SentRow(span, row)) {
    std::copy_n(sent + part * shape_.width + begin, count, out);
    return;
  }
  if (entry_number_[static_cast<size_t>(span)] < 0) {
    std::fill_n(out, count, 0.0f);
    return;
  }
  const int64_t share = ShareWidth();
  PERIGEE_CHECK(begin % share == 0 && count % share == 0);
  for (int64_t c = begin; c < begin + count; c += share, out += share) {
    const float* conv = Entry(span, c / share);
    std::copy_n(conv + ((shape_.history + row) * shape_.parts + part) * share, share, out);
  }
}

void HaloExchange::TailBefore(int32_t span, int64_t row, float* out) const {
  for (int64_t m = 0; m < shape_.history; ++m) {
    for (int64_t part = 0; part < shape_.parts; ++part, out += shape_.width) {
      CopyChannels(span, row - shape_.history + m, part, 0, shape_.width, out);
    }
  }
}

void HaloExchange::ShareOfTailBefore(int32_t span, int64_t row, float* out) const {
  const int64_t share = ShareWidth();
  for (int64_t m = 0; m < shape_.history; ++m) {
    for (int64_t part = 0; part < shape_.parts; ++part, out += share) {
      CopyChannels(span, row - shape_.history + m, part, plan_->rank * share, share, out);
    }
  }
}

void HaloExchange::EntryState(int32_t span, float* out) const {
  if (entry_number_[static_cast<size_t>(span)] < 0) {
    std::fill_n(out, ranks_ * shape_.state, 0.0f);
    return;
  }
  const int64_t conv = shape_.history * shape_.parts * ShareWidth();
  for (int64_t r = 0; r < ranks_; ++r) out = std::copy_n(Entry(span, r) + conv, shape_.state, out);
}

}  // namespace perigee::parallel
