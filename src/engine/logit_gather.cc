#include "engine/logit_gather.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/math.h"
#include "kernels/gemm/gemm.h"

namespace perigee::engine {
namespace {

constexpr int64_t kHead = 3;  // maximum, sum, target

// A rank's message: per row its head, then the logits of the rows that are wished whole.
std::span<const float> Message(const kernels::KernelContext& context, const model::VocabularyShare& share,
                               ConstMatrixF local, std::span<const LogitWish> wishes, int64_t whole) {
  std::vector<kernels::ExpSum> sums(wishes.size());
  ExpSums(context, local, share.part_bounds, sums);
  const int64_t size = local.rows * kHead + whole * share.size();
  float* const message = context.workspace->Floats(size);
  float* next = message;
  for (size_t r = 0; r < wishes.size(); ++r) {
    float target = -std::numeric_limits<float>::infinity();
    if (wishes[r].target && *wishes[r].target >= share.begin && *wishes[r].target < share.end) {
      target = local.Row(static_cast<int64_t>(r))[*wishes[r].target - share.begin];
    }
    for (const float value : {sums[r].max, sums[r].sum, target}) *next++ = value;
  }
  for (size_t r = 0; r < wishes.size(); ++r) {
    if (wishes[r].all) next = std::copy_n(local.Row(static_cast<int64_t>(r)), share.size(), next);
  }
  return {message, static_cast<size_t>(size)};
}

// Neighbours first, an odd one carried up: the tree of the communicators.
kernels::ExpSum MergeShares(std::vector<kernels::ExpSum> sums) {
  while (sums.size() > 1) {
    std::vector<kernels::ExpSum> next;
    for (size_t i = 0; i + 1 < sums.size(); i += 2)
      next.push_back(kernels::MergeExpSums(sums[i], sums[i + 1]));
    if (sums.size() % 2 == 1) next.push_back(sums.back());
    sums = std::move(next);
  }
  return sums[0];
}

// One rank has all there is: its rows are looked at where they lie.
std::vector<RowLogits> LookAtLogits(const kernels::KernelContext& context,
                                    const model::VocabularyShare& share, ConstMatrixF logits,
                                    std::span<const LogitWish> wishes) {
  std::vector<kernels::ExpSum> sums(wishes.size());
  ExpSums(context, logits, share.part_bounds, sums);
  std::vector<RowLogits> result(wishes.size());
  for (size_t r = 0; r < wishes.size(); ++r) {
    const float* row = logits.Row(static_cast<int64_t>(r));
    result[r].lse = kernels::LogOf(sums[r]);
    if (wishes[r].target) result[r].target = row[*wishes[r].target];
    if (wishes[r].all) result[r].logits = {row, static_cast<size_t>(logits.cols)};
  }
  return result;
}

}  // namespace

StatusOr<std::vector<RowLogits>> GatherLogits(const kernels::KernelContext& context,
                                              comm::Communicator* group, const model::VocabularyShare& share,
                                              int64_t vocab_size, ConstMatrixF local,
                                              std::span<const LogitWish> wishes) {
  PERIGEE_CHECK(local.rows == static_cast<int64_t>(wishes.size()));
  if (group == nullptr) return LookAtLogits(context, share, local, wishes);
  const int ranks = group->size();
  const auto rows = static_cast<int64_t>(wishes.size());
  const int64_t whole = std::count_if(wishes.begin(), wishes.end(), [](const LogitWish& w) { return w.all; });
  const std::span<const float> message = Message(context, share, local, wishes, whole);
  std::vector<int64_t> receive_counts(static_cast<size_t>(ranks), 0);
  std::vector<int64_t> send_counts(static_cast<size_t>(ranks), 0);
  send_counts[0] = static_cast<int64_t>(message.size());
  std::span<float> gathered;
  if (group->rank() == 0) {
    for (int s = 0; s < ranks; ++s) {
      const int64_t width = PartBegin(s + 1, vocab_size, ranks) - PartBegin(s, vocab_size, ranks);
      receive_counts[static_cast<size_t>(s)] = rows * kHead + whole * width;
    }
    const int64_t size = rows * kHead * ranks + whole * vocab_size;
    gathered = {context.workspace->Floats(size), static_cast<size_t>(size)};
  }
  PERIGEE_RETURN_IF_ERROR(group->AllToAll(message, send_counts, gathered, receive_counts));
  if (group->rank() != 0) return std::vector<RowLogits>{};

  std::vector<RowLogits> result(wishes.size());
  std::vector<std::vector<kernels::ExpSum>> sums(wishes.size());
  for (RowLogits& r : result) r.target = -std::numeric_limits<float>::infinity();
  const MatrixF full(context.workspace->Floats(whole * vocab_size), whole, vocab_size);
  const float* next = gathered.data();
  for (int s = 0; s < ranks; ++s) {
    for (size_t r = 0; r < wishes.size(); ++r, next += kHead) {
      sums[r].push_back({next[0], next[1]});
      result[r].target = std::max(result[r].target, next[2]);
    }
    const int64_t begin = PartBegin(s, vocab_size, ranks);
    const int64_t width = PartBegin(s + 1, vocab_size, ranks) - begin;
    for (int64_t w = 0; w < whole; ++w, next += width) std::copy_n(next, width, full.Row(w) + begin);
  }
  int64_t w = 0;
  for (size_t r = 0; r < wishes.size(); ++r) {
    result[r].lse = kernels::LogOf(MergeShares(std::move(sums[r])));
    if (wishes[r].all) result[r].logits = {full.Row(w++), static_cast<size_t>(vocab_size)};
  }
  return result;
}

void TallyLogits(kernels::WorkspaceTally& tally, int64_t rows, int64_t hidden, int64_t share,
                 int64_t vocab_size, int ranks, bool first) {
  const kernels::WorkspaceTally::Scope scope(tally);
  tally.Floats(rows * share);
  TallyGemm(tally, rows, share, hidden);
  if (ranks == 1) return;
  tally.Floats(rows * (kHead + share));
  if (!first) return;
  tally.Floats(rows * (kHead * ranks + vocab_size));
  tally.Floats(rows * vocab_size);
}

}  // namespace perigee::engine
