#include "comm/thread_communicator.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "base/strings.h"
#include "comm/arguments.h"
#include "comm/barrier.h"
#include "comm/group_state.h"
#include "comm/tree_sum.h"

namespace perigee::comm {
namespace {

// Sums pass through a block of this many floats that stays in the first-level cache.
constexpr int64_t kSumBlock = 1024;

void Copy(const float* from, int64_t n, float* to) {
  std::copy_n(from, n, to);
}

}  // namespace

class ThreadGroup final : public GroupState {
 public:
  // What a rank shows to the others; valid between meeting and parting.
  struct alignas(64) Slot {
    std::string_view call;
    const float* send = nullptr;
    float* data = nullptr;            // all-reduce: read and written by the others
    std::span<const int64_t> counts;  // all-to-all: of the send buffer; broadcast: size and root
    int color = 0;
    int key = 0;
    std::shared_ptr<ThreadGroup> split;
  };

  // first_ranks[r]: the number of rank r in the first group, for messages.
  explicit ThreadGroup(std::vector<int> first_ranks_in_order)
      : slots(first_ranks_in_order.size()),
        first_ranks(std::move(first_ranks_in_order)),
        meeting(static_cast<int>(slots.size())),
        parting(static_cast<int>(slots.size())) {}

  std::vector<Slot> slots;
  const std::vector<int> first_ranks;
  Barrier meeting;
  // Never broken: whoever has met reads and writes others' memory without waiting, so all get here soon.
  Barrier parting;

 private:
  void OnBroken() override { meeting.Break(); }
};

std::vector<std::unique_ptr<Communicator>> ThreadCommunicator::CreateGroup(int size) {
  PERIGEE_CHECK(size >= 1);
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) ranks[static_cast<size_t>(r)] = r;
  const auto group = std::make_shared<ThreadGroup>(std::move(ranks));
  std::vector<std::unique_ptr<Communicator>> out;
  for (int r = 0; r < size; ++r) {
    out.push_back(std::unique_ptr<Communicator>(new ThreadCommunicator(group, r)));
  }
  return out;
}

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
    : group_(std::move(group)), rank_(rank), size_(static_cast<int>(group_->slots.size())) {}

ThreadCommunicator::~ThreadCommunicator() {
  group_->Break(InternalError(StrCat("rank ", group_->first_ranks[static_cast<size_t>(rank_)],
                                     " left its group of ", size_, " ranks")));
}

Status ThreadCommunicator::Meet(std::string_view call) {
  group_->slots[static_cast<size_t>(rank_)].call = call;
  if (!group_->meeting.ArriveAndWait()) return group_->status();
  for (int r = 0; r < size_; ++r) {
    const std::string_view other = group_->slots[static_cast<size_t>(r)].call;
    PERIGEE_CHECK_MSG(other == call, StrCat("rank ", rank_, " of ", size_, " calls ", call, " while rank ", r,
                                            " calls ", other));
  }
  return Status::Ok();
}

void ThreadCommunicator::Part() {
  PERIGEE_CHECK(group_->parting.ArriveAndWait());
}

void ThreadCommunicator::CheckSameCounts(std::string_view call, std::span<const int64_t> counts) const {
  for (int r = 0; r < size_; ++r) {
    const std::span<const int64_t> other = group_->slots[static_cast<size_t>(r)].counts;
    PERIGEE_CHECK_MSG(std::ranges::equal(other, counts),
                      StrCat("rank ", rank_, " of ", size_, ": ", call, " with counts ", ShapeString(counts),
                             ", rank ", r, " has ", ShapeString(other)));
  }
}

Status ThreadCommunicator::AllGather(std::span<const float> send, std::span<float> receive,
                                     std::span<const int64_t> counts) {
  constexpr Collective kCall = Collective::kAllGather;
  CheckAllGather(*this, send, receive, counts);
  ThreadGroup::Slot& mine = group_->slots[static_cast<size_t>(rank_)];
  mine.send = send.data();
  mine.counts = counts;
  PERIGEE_RETURN_IF_ERROR(Meet(CollectiveName(kCall)));
  CheckSameCounts(CollectiveName(kCall), counts);
  float* to = receive.data();
  for (size_t r = 0; r < counts.size(); ++r) {
    Copy(group_->slots[r].send, counts[r], to);
    to += counts[r];
  }
  traffic_.Add(kCall, static_cast<int64_t>(send.size()) * (size_ - 1));
  Part();
  return Status::Ok();
}

void ThreadCommunicator::SumOfRanks(int64_t begin, int64_t end, std::span<float* const> outputs) const {
  std::vector<const float*> operands(static_cast<size_t>(size_));
  std::array<float, kSumBlock> sums;
  for (int64_t at = begin; at < end; at += kSumBlock) {
    const int64_t n = std::min(kSumBlock, end - at);
    for (size_t r = 0; r < operands.size(); ++r) operands[r] = group_->slots[r].send + at;
    TreeSum(operands, n, sums.data());
    for (float* out : outputs) Copy(sums.data(), n, out + (at - begin));
  }
}

Status ThreadCommunicator::ReduceScatter(std::span<const float> send, std::span<float> receive,
                                         std::span<const int64_t> counts) {
  constexpr Collective kCall = Collective::kReduceScatter;
  CheckReduceScatter(*this, send, receive, counts);
  ThreadGroup::Slot& mine = group_->slots[static_cast<size_t>(rank_)];
  mine.send = send.data();
  mine.counts = counts;
  PERIGEE_RETURN_IF_ERROR(Meet(CollectiveName(kCall)));
  CheckSameCounts(CollectiveName(kCall), counts);
  const int64_t begin = PartOffset(counts, rank_);
  const auto part = static_cast<int64_t>(receive.size());
  SumOfRanks(begin, begin + part, std::array{receive.data()});
  traffic_.Add(kCall, static_cast<int64_t>(send.size()) - part);
  Part();
  return Status::Ok();
}

// A reduce-scatter whose ranks write their sums to everybody: element i of any rank's data is read and
// written by the rank of i's part alone, so that no third wait is needed.
Status ThreadCommunicator::AllReduce(std::span<float> data) {
  constexpr Collective kCall = Collective::kAllReduce;
  const auto total = static_cast<int64_t>(data.size());
  ThreadGroup::Slot& mine = group_->slots[static_cast<size_t>(rank_)];
  mine.send = mine.data = data.data();
  mine.counts = std::span(&total, 1);
  PERIGEE_RETURN_IF_ERROR(Meet(CollectiveName(kCall)));
  CheckSameCounts(CollectiveName(kCall), mine.counts);
  const int64_t begin = PartBegin(rank_, total, size_);
  const int64_t end = PartBegin(rank_ + 1, total, size_);
  if (size_ > 1 && begin < end) {
    std::vector<float*> outputs;
    for (const ThreadGroup::Slot& slot : group_->slots) outputs.push_back(slot.data + begin);
    SumOfRanks(begin, end, outputs);
  }
  traffic_.Add(kCall, total - (end - begin) + (end - begin) * (size_ - 1));
  Part();
  return Status::Ok();
}

Status ThreadCommunicator::AllToAll(std::span<const float> send, std::span<const int64_t> send_counts,
                                    std::span<float> receive, std::span<const int64_t> receive_counts) {
  constexpr Collective kCall = Collective::kAllToAll;
  CheckAllToAll(*this, send, send_counts, receive, receive_counts);
  const auto me = static_cast<size_t>(rank_);
  ThreadGroup::Slot& mine = group_->slots[me];
  mine.send = send.data();
  mine.counts = send_counts;
  PERIGEE_RETURN_IF_ERROR(Meet(CollectiveName(kCall)));
  float* to = receive.data();
  for (size_t r = 0; r < receive_counts.size(); ++r) {
    const ThreadGroup::Slot& other = group_->slots[r];
    PERIGEE_CHECK_MSG(other.counts[me] == receive_counts[r],
                      StrCat("rank ", rank_, " of ", size_, ": ", CollectiveName(kCall), " expects ",
                             receive_counts[r], " elements of rank ", r, ", which sends ", other.counts[me]));
    Copy(other.send + PartOffset(other.counts, rank_), receive_counts[r], to);
    to += receive_counts[r];
  }
  traffic_.Add(kCall, static_cast<int64_t>(send.size()) - send_counts[me]);
  Part();
  return Status::Ok();
}

Status ThreadCommunicator::Broadcast(std::span<float> data, int root) {
  constexpr Collective kCall = Collective::kBroadcast;
  CheckBroadcast(*this, root);
  const std::array<int64_t, 2> size_and_root = {static_cast<int64_t>(data.size()), root};
  ThreadGroup::Slot& mine = group_->slots[static_cast<size_t>(rank_)];
  mine.send = data.data();
  mine.counts = size_and_root;
  PERIGEE_RETURN_IF_ERROR(Meet(CollectiveName(kCall)));
  CheckSameCounts("Broadcast of (size, root)", size_and_root);
  if (rank_ != root) {
    Copy(group_->slots[static_cast<size_t>(root)].send, size_and_root[0], data.data());
  }
  traffic_.Add(kCall, rank_ == root ? size_and_root[0] * (size_ - 1) : 0);
  Part();
  return Status::Ok();
}

StatusOr<std::unique_ptr<Communicator>> ThreadCommunicator::Split(int color, int key) {
  ThreadGroup::Slot& mine = group_->slots[static_cast<size_t>(rank_)];
  mine.color = color;
  mine.key = key;
  PERIGEE_RETURN_IF_ERROR(Meet("Split"));
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < size_; ++r) {
    const ThreadGroup::Slot& slot = group_->slots[static_cast<size_t>(r)];
    if (slot.color == color) members.emplace_back(slot.key, r);
  }
  std::ranges::sort(members);
  std::vector<int> first_ranks;
  int new_rank = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    PERIGEE_CHECK_MSG(i == 0 || members[i].first != members[i - 1].first,
                      StrCat("Split: ranks ", members[i - 1].second, " and ", members[i].second, " of color ",
                             color, " both gave key ", members[i].first));
    first_ranks.push_back(group_->first_ranks[static_cast<size_t>(members[i].second)]);
    if (members[i].second == rank_) new_rank = static_cast<int>(i);
  }
  // The first rank of each new group makes it; the others take it from that rank's slot.
  if (new_rank == 0) {
    mine.split = std::make_shared<ThreadGroup>(std::move(first_ranks));
    GroupState::Link(group_, mine.split);
  }
  Part();
  std::shared_ptr<ThreadGroup> group = group_->slots[static_cast<size_t>(members[0].second)].split;
  Part();
  mine.split.reset();
  return StatusOr<std::unique_ptr<Communicator>>(
      std::unique_ptr<Communicator>(new ThreadCommunicator(std::move(group), new_rank)));
}

void ThreadCommunicator::Abort(const Status& reason) {
  group_->Abort(reason);
}

}  // namespace perigee::comm
