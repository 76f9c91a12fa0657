#include "comm/mpi_communicator.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "base/strings.h"
#include "comm/arguments.h"
#include "comm/backoff.h"
#include "comm/tree_sum.h"

namespace perigee::comm {
namespace {

using Clock = std::chrono::steady_clock;

// A pair of ranks moves at most this many floats in one message: bounds the buffers, and sizes fit an int.
constexpr int64_t kPiece = int64_t{64} << 10;
constexpr uint32_t kSplit = kNumCollectives;
// Between an error of MPI and the word of the mesh on what happened.
constexpr std::chrono::milliseconds kErrorPatience{500};

// Before the floats of the first message that a pair exchanges in a collective.
struct Header {
  uint32_t call = 0;         // a Collective, or kSplit
  uint32_t fingerprint = 0;  // of the counts, which must be the same on both sides
  int64_t count = 0;         // floats in all, from the sender to the receiver
};
static_assert(sizeof(Header) % sizeof(float) == 0);

// For the watchdog: this rank waits for others.
class ExchangeScope {
 public:
  explicit ExchangeScope(GroupBoard* board) : board_(board) { board_->EnterExchange(); }
  ~ExchangeScope() { board_->LeaveExchange(); }
  ExchangeScope(const ExchangeScope&) = delete;
  ExchangeScope& operator=(const ExchangeScope&) = delete;

 private:
  GroupBoard* const board_;
};

std::string_view CallName(uint32_t call) {
  return call == kSplit ? "Split" : CollectiveName(static_cast<Collective>(call));
}

std::string ErrorText(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(error, text.data(), &size);
  return {text.data(), static_cast<size_t>(size)};
}

class Session final : public MpiSession {
 public:
  Session() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~Session() override {
    if (!abandoned_) MPI_Finalize();
  }

  void Abandon() override { abandoned_ = true; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  StatusOr<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine,
                                                          Clock::time_point deadline) override {
    // Static: what an MPI that nobody waits for any more may still write to.
    static std::vector<int> sizes, offsets;
    static std::vector<std::byte> sent, received;
    sent.assign(mine.begin(), mine.end());
    sizes.assign(static_cast<size_t>(size_), 0);
    static int size = 0;
    size = static_cast<int>(mine.size());
    MPI_Request request;
    MPI_Iallgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD, &request);
    PERIGEE_RETURN_IF_ERROR(Await(request, deadline));
    offsets.assign(1, 0);
    for (const int n : sizes) offsets.push_back(offsets.back() + n);
    received.resize(static_cast<size_t>(offsets.back()));
    MPI_Iallgatherv(sent.data(), size, MPI_BYTE, received.data(), sizes.data(), offsets.data(), MPI_BYTE,
                    MPI_COMM_WORLD, &request);
    PERIGEE_RETURN_IF_ERROR(Await(request, deadline));
    std::vector<std::vector<std::byte>> all;
    for (size_t r = 0; r < sizes.size(); ++r) {
      all.emplace_back(received.begin() + offsets[r], received.begin() + offsets[r + 1]);
    }
    return all;
  }

 private:
  static Status Await(MPI_Request& request, Clock::time_point deadline) {
    Backoff backoff;
    while (true) {
      int done = 0;
      const int error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (error != MPI_SUCCESS) return InternalError(StrCat("MPI: ", ErrorText(error)));
      if (done != 0) return Status::Ok();
      if (Clock::now() >= deadline) return InternalError("MPI: some rank did not start in time");
      backoff.Wait();
    }
  }

  int rank_ = 0;
  int size_ = 1;
  bool abandoned_ = false;
};

// The buffers and requests of one round of an exchange.
struct Staging {
  explicit Staging(size_t ranks) : send(ranks), receive(ranks) {}

  std::vector<std::vector<std::byte>> send;
  std::vector<std::vector<std::byte>> receive;
  std::vector<MPI_Request> requests;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(GroupBoard* board, std::shared_ptr<ProcessGroup> group)
      : board_(board),
        group_(std::move(group)),
        rank_(group_->rank()),
        size_(group_->size()),
        staging_(std::make_unique<Staging>(static_cast<size_t>(size_))) {}
  ~MpiCommunicator() override { board_->Leave(*group_, exchanges_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status AllGather(std::span<const float> send, std::span<float> receive,
                   std::span<const int64_t> counts) override;
  Status ReduceScatter(std::span<const float> send, std::span<float> receive,
                       std::span<const int64_t> counts) override;
  Status AllReduce(std::span<float> data) override;
  Status AllToAll(std::span<const float> send, std::span<const int64_t> send_counts, std::span<float> receive,
                  std::span<const int64_t> receive_counts) override;
  Status Broadcast(std::span<float> data, int root) override;
  StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  void Abort(const Status& reason) override { board_->Abort(*group_, reason); }
  const Traffic& traffic() const override { return traffic_; }

 private:
  using Spans = std::vector<std::span<const float>>;
  // Gets, for some offset, the floats from there on of what each rank sends to this one (of the own part
  // too).
  using Take = std::function<void(int64_t offset, const Spans& pieces)>;
  struct Call {
    uint32_t call = 0;
    std::span<const int64_t> counts;  // the same on all ranks
  };

  // Gives send[r] to every rank r and takes receive_counts[r] floats from each, a piece of each at a time.
  // Returns when all ranks have come and all is sent and taken.
  Status Exchange(const Call& call, const Spans& send, std::span<const int64_t> receive_counts,
                  const Take& take);
  void BeginRound(const Header& header, const Spans& send, std::span<const int64_t> receive_counts,
                  int64_t offset);
  Status AwaitRound();
  void CheckHeaders(const Header& mine, std::span<const int64_t> receive_counts) const;
  Status SumOfParts(const Call& call, std::span<const float> data, std::span<const int64_t> counts,
                    std::span<float> sums);
  Status GatherParts(const Call& call, std::span<const float> part, std::span<const int64_t> counts,
                     std::span<float> all);
  Spans Parts(std::span<const float> data, std::span<const int64_t> counts) const;

  GroupBoard* const board_;
  const std::shared_ptr<ProcessGroup> group_;
  const int rank_;
  const int size_;
  std::unique_ptr<Staging> staging_;
  uint64_t exchanges_ = 0;  // complete
  Traffic traffic_;
};

uint32_t Fingerprint(std::span<const int64_t> counts) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over whole numbers
  for (const int64_t n : counts) hash = (hash ^ static_cast<uint64_t>(n)) * 0x100000001b3;
  return static_cast<uint32_t>(hash ^ hash >> 32);
}

int64_t PieceSize(int64_t count, int64_t offset) {
  return std::clamp<int64_t>(count - offset, 0, kPiece);
}

Status MpiCommunicator::Exchange(const Call& call, const Spans& send, std::span<const int64_t> receive_counts,
                                 const Take& take) {
  PERIGEE_RETURN_IF_ERROR(group_->Check(exchanges_));
  const Header header{.call = call.call, .fingerprint = Fingerprint(call.counts)};
  int64_t longest = 0;
  for (size_t r = 0; r < send.size(); ++r) {
    longest = std::max({longest, static_cast<int64_t>(send[r].size()), receive_counts[r]});
  }
  const ExchangeScope waiting(board_);
  int64_t offset = 0;
  do {
    BeginRound(header, send, receive_counts, offset);
    PERIGEE_RETURN_IF_ERROR(AwaitRound());
    if (offset == 0) CheckHeaders(header, receive_counts);
    Spans pieces(send.size());
    for (size_t r = 0; r < send.size(); ++r) {
      const auto n = static_cast<size_t>(PieceSize(receive_counts[r], offset));
      if (n == 0) continue;
      pieces[r] = static_cast<int>(r) == rank_
                      ? send[r].subspan(static_cast<size_t>(offset), n)
                      : std::span(reinterpret_cast<const float*>(staging_->receive[r].data() +
                                                                 (offset == 0 ? sizeof(Header) : 0)),
                                  n);
    }
    take(offset, pieces);
    offset += kPiece;
  } while (offset < longest);
  ++exchanges_;
  return Status::Ok();
}

void MpiCommunicator::BeginRound(const Header& header, const Spans& send,
                                 std::span<const int64_t> receive_counts, int64_t offset) {
  const size_t head = offset == 0 ? sizeof header : 0;
  staging_->requests.clear();
  for (size_t r = 0; r < send.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    const auto bytes = static_cast<size_t>(PieceSize(receive_counts[r], offset)) * sizeof(float) + head;
    if (bytes == 0) continue;
    std::vector<std::byte>& to = staging_->receive[r];
    if (to.size() < bytes) to.resize(bytes);
    staging_->requests.emplace_back();
    MPI_Irecv(to.data(), static_cast<int>(to.size()), MPI_BYTE, group_->world_ranks()[r], group_->tag(),
              MPI_COMM_WORLD, &staging_->requests.back());
  }
  for (size_t r = 0; r < send.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    const auto count = static_cast<int64_t>(send[r].size());
    const auto floats = static_cast<size_t>(PieceSize(count, offset)) * sizeof(float);
    if (floats + head == 0) continue;
    std::vector<std::byte>& from = staging_->send[r];
    if (from.size() < floats + head) from.resize(floats + head);
    if (head > 0) {
      Header to_rank = header;
      to_rank.count = count;
      std::memcpy(from.data(), &to_rank, head);
    }
    if (floats > 0) std::memcpy(from.data() + head, send[r].data() + offset, floats);
    staging_->requests.emplace_back();
    MPI_Isend(from.data(), static_cast<int>(floats + head), MPI_BYTE, group_->world_ranks()[r], group_->tag(),
              MPI_COMM_WORLD, &staging_->requests.back());
  }
}

Status MpiCommunicator::AwaitRound() {
  Backoff backoff;
  std::optional<Clock::time_point> failed;
  while (true) {
    int done = 0;
    int error = MPI_SUCCESS;
    if (!failed) {
      error = MPI_Testall(static_cast<int>(staging_->requests.size()), staging_->requests.data(), &done,
                          MPI_STATUSES_IGNORE);
    }
    if (error == MPI_SUCCESS && done != 0) return Status::Ok();
    // A rank that died can show here first. The mesh knows better who it was.
    if (error != MPI_SUCCESS) failed = Clock::now();
    if (failed && Clock::now() - *failed > kErrorPatience) {
      Abort(Unavailable(StrCat("rank ", group_->world_ranks()[static_cast<size_t>(rank_)],
                               ": MPI lost a message to or from another rank")));
    }
    if (!group_->Usable(exchanges_)) {
      static std::vector<std::unique_ptr<Staging>> kept;
      kept.push_back(std::exchange(staging_, std::make_unique<Staging>(static_cast<size_t>(size_))));
      return group_->Check(exchanges_);
    }
    backoff.Wait();
  }
}

void MpiCommunicator::CheckHeaders(const Header& mine, std::span<const int64_t> receive_counts) const {
  for (size_t r = 0; r < receive_counts.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    Header theirs;
    std::memcpy(&theirs, staging_->receive[r].data(), sizeof theirs);
    PERIGEE_CHECK_MSG(theirs.call == mine.call,
                      StrCat("rank ", rank_, " of ", size_, " calls ", CallName(mine.call), " while rank ", r,
                             " calls ", CallName(theirs.call)));
    PERIGEE_CHECK_MSG(
        theirs.fingerprint == mine.fingerprint,
        StrCat("rank ", rank_, " of ", size_, ": ", CallName(mine.call), " with other counts than rank ", r));
    PERIGEE_CHECK_MSG(theirs.count == receive_counts[r],
                      StrCat("rank ", rank_, " of ", size_, ": ", CallName(mine.call), " expects ",
                             receive_counts[r], " elements of rank ", r, ", which sends ", theirs.count));
  }
}

MpiCommunicator::Spans MpiCommunicator::Parts(std::span<const float> data,
                                              std::span<const int64_t> counts) const {
  Spans parts;
  for (const int64_t n : counts) {
    parts.push_back(data.first(static_cast<size_t>(n)));
    data = data.subspan(static_cast<size_t>(n));
  }
  return parts;
}

Status MpiCommunicator::GatherParts(const Call& call, std::span<const float> part,
                                    std::span<const int64_t> counts, std::span<float> all) {
  const Spans send(static_cast<size_t>(size_), part);
  return Exchange(call, send, counts, [&](int64_t offset, const Spans& pieces) {
    float* begin = all.data();
    for (size_t r = 0; r < pieces.size(); ++r) {
      std::copy(pieces[r].begin(), pieces[r].end(), begin + offset);
      begin += counts[r];
    }
  });
}

// sums = the sums of all ranks' part of this rank.
Status MpiCommunicator::SumOfParts(const Call& call, std::span<const float> data,
                                   std::span<const int64_t> counts, std::span<float> sums) {
  const std::vector<int64_t> receive_counts(static_cast<size_t>(size_), static_cast<int64_t>(sums.size()));
  return Exchange(call, Parts(data, counts), receive_counts, [&](int64_t offset, const Spans& pieces) {
    std::vector<const float*> operands;
    for (const std::span<const float> piece : pieces) operands.push_back(piece.data());
    const auto n = static_cast<int64_t>(pieces[0].size());
    if (n > 0) TreeSum(operands, n, sums.data() + offset);
  });
}

Status MpiCommunicator::AllGather(std::span<const float> send, std::span<float> receive,
                                  std::span<const int64_t> counts) {
  constexpr Collective kCall = Collective::kAllGather;
  CheckAllGather(*this, send, receive, counts);
  PERIGEE_RETURN_IF_ERROR(GatherParts({static_cast<uint32_t>(kCall), counts}, send, counts, receive));
  traffic_.Add(kCall, static_cast<int64_t>(send.size()) * (size_ - 1));
  return Status::Ok();
}

Status MpiCommunicator::ReduceScatter(std::span<const float> send, std::span<float> receive,
                                      std::span<const int64_t> counts) {
  constexpr Collective kCall = Collective::kReduceScatter;
  CheckReduceScatter(*this, send, receive, counts);
  PERIGEE_RETURN_IF_ERROR(SumOfParts({static_cast<uint32_t>(kCall), counts}, send, counts, receive));
  traffic_.Add(kCall, static_cast<int64_t>(send.size() - receive.size()));
  return Status::Ok();
}

Status MpiCommunicator::AllReduce(std::span<float> data) {
  constexpr Collective kCall = Collective::kAllReduce;
  const auto total = static_cast<int64_t>(data.size());
  std::vector<int64_t> counts;
  for (int r = 0; r < size_; ++r)
    counts.push_back(PartBegin(r + 1, total, size_) - PartBegin(r, total, size_));
  const int64_t part = counts[static_cast<size_t>(rank_)];
  std::vector<float> sums(static_cast<size_t>(part));
  const Call call{static_cast<uint32_t>(kCall), counts};
  PERIGEE_RETURN_IF_ERROR(SumOfParts(call, data, counts, sums));
  PERIGEE_RETURN_IF_ERROR(GatherParts(call, sums, counts, data));
  traffic_.Add(kCall, total - part + part * (size_ - 1));
  return Status::Ok();
}

Status MpiCommunicator::AllToAll(std::span<const float> send, std::span<const int64_t> send_counts,
                                 std::span<float> receive, std::span<const int64_t> receive_counts) {
  constexpr Collective kCall = Collective::kAllToAll;
  CheckAllToAll(*this, send, send_counts, receive, receive_counts);
  const auto take = [&](int64_t offset, const Spans& pieces) {
    float* begin = receive.data();
    for (size_t r = 0; r < pieces.size(); ++r) {
      std::copy(pieces[r].begin(), pieces[r].end(), begin + offset);
      begin += receive_counts[r];
    }
  };
  const Call call{static_cast<uint32_t>(kCall), {}};
  PERIGEE_RETURN_IF_ERROR(Exchange(call, Parts(send, send_counts), receive_counts, take));
  traffic_.Add(kCall, static_cast<int64_t>(send.size()) - send_counts[static_cast<size_t>(rank_)]);
  return Status::Ok();
}

Status MpiCommunicator::Broadcast(std::span<float> data, int root) {
  constexpr Collective kCall = Collective::kBroadcast;
  CheckBroadcast(*this, root);
  const auto n = static_cast<int64_t>(data.size());
  const bool sends = rank_ == root;
  Spans send(static_cast<size_t>(size_));
  std::vector<int64_t> receive_counts(static_cast<size_t>(size_), 0);
  for (int r = 0; r < size_; ++r) {
    if (sends && r != rank_) send[static_cast<size_t>(r)] = data;
  }
  if (!sends) receive_counts[static_cast<size_t>(root)] = n;
  const std::array<int64_t, 2> size_and_root = {n, root};
  const Call call{static_cast<uint32_t>(kCall), size_and_root};
  PERIGEE_RETURN_IF_ERROR(Exchange(call, send, receive_counts, [&](int64_t offset, const Spans& pieces) {
    const std::span<const float> piece = pieces[static_cast<size_t>(root)];
    std::copy(piece.begin(), piece.end(), data.begin() + offset);
  }));
  traffic_.Add(kCall, sends ? n * (size_ - 1) : 0);
  return Status::Ok();
}

// What a rank says of itself before a split, carried as the bits of floats.
StatusOr<std::unique_ptr<Communicator>> MpiCommunicator::Split(int color, int key) {
  constexpr size_t kWords = 3;
  const std::array<int32_t, kWords> mine = {color, key, board_->FreshTag()};
  std::vector<float> all(kWords * static_cast<size_t>(size_));
  const std::vector<int64_t> counts(static_cast<size_t>(size_), kWords);
  PERIGEE_RETURN_IF_ERROR(
      GatherParts({kSplit, {}}, std::bit_cast<std::array<float, kWords>>(mine), counts, all));
  int tag = 0;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < size_; ++r) {
    std::array<int32_t, kWords> said;
    std::memcpy(said.data(), all.data() + kWords * static_cast<size_t>(r), sizeof said);
    tag = std::max(tag, said[2]);
    if (said[0] == color) members.emplace_back(said[1], r);
  }
  std::ranges::sort(members);
  std::vector<int> world_ranks;
  int new_rank = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    PERIGEE_CHECK_MSG(i == 0 || members[i].first != members[i - 1].first,
                      StrCat("Split: ranks ", members[i - 1].second, " and ", members[i].second, " of color ",
                             color, " both gave key ", members[i].first));
    world_ranks.push_back(group_->world_ranks()[static_cast<size_t>(members[i].second)]);
    if (members[i].second == rank_) new_rank = static_cast<int>(i);
  }
  const auto group = std::make_shared<ProcessGroup>(tag, std::move(world_ranks), new_rank);
  GroupState::Link(group_, group);
  board_->Add(group);
  return MakeMpiCommunicator(board_, group);
}

}  // namespace

StatusOr<std::unique_ptr<MpiSession>> MpiSession::Start() {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    return InternalError("MPI does not start");
  }
  auto session = std::make_unique<Session>();
  if (provided < MPI_THREAD_SERIALIZED) {
    return InternalError("this MPI lets the first thread alone call it; perigee needs MPI_THREAD_SERIALIZED");
  }
  return StatusOr<std::unique_ptr<MpiSession>>(std::move(session));
}

std::unique_ptr<Communicator> MakeMpiCommunicator(GroupBoard* board, std::shared_ptr<ProcessGroup> group) {
  return std::make_unique<MpiCommunicator>(board, std::move(group));
}

}  // namespace perigee::comm
