#include "comm/process_ranks.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/strings.h"
#include "comm/mesh_setup.h"
#include "comm/sockets.h"

namespace perigee::comm {
namespace {

using Clock = std::chrono::steady_clock;

// From the first rank's start to the last one's connection.
constexpr std::chrono::seconds kStartLimit{120};

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

enum ProcessRanks::Message : uint8_t {
  kPulse,   // Liveness::Pulse
  kLeave,   // GroupBoard
  kAbort,   // GroupBoard
  kFail,    // EncodeFailure: the sender has lost the ranks
  kGather,  // a part of AllGather
  kTell,    // of rank 0
  kGoodbye,
};

StatusOr<std::unique_ptr<ProcessRanks>> ProcessRanks::Start(std::chrono::milliseconds watchdog) {
  PERIGEE_ASSIGN_OR_RETURN(std::unique_ptr<MpiSession> session, MpiSession::Start());
  std::unique_ptr<ProcessRanks> ranks(new ProcessRanks(std::move(session), watchdog));
  if (const Status connected = ranks->Connect(watchdog); !connected.ok()) {
    ranks->Lose(connected, false);
    return connected;
  }
  return ranks;
}

ProcessRanks::ProcessRanks(std::unique_ptr<MpiSession> session, std::chrono::milliseconds watchdog)
    : rank_(session->rank()),
      size_(session->size()),
      session_(std::move(session)),
      board_([this](int to, auto bytes) { mesh_->Send(to, kLeave, bytes); },
             [this](int to, auto bytes) { mesh_->Send(to, kAbort, bytes); }),
      group_(std::make_shared<ProcessGroup>(0, AllRanks(size_), rank_)),
      liveness_(rank_, size_, watchdog, Clock::now()),
      gone_(static_cast<size_t>(size_)),
      gathered_(static_cast<size_t>(size_)) {
  board_.Add(group_);
}

Status ProcessRanks::Connect(std::chrono::milliseconds watchdog) {
  const Clock::time_point deadline = Clock::now() + kStartLimit;
  const std::string host = HostIdentity();
  PERIGEE_ASSIGN_OR_RETURN(const auto hosts, session_->AllGather(BytesOf(host), deadline));
  bool several_hosts = false;
  for (const std::vector<std::byte>& bytes : hosts) {
    hosts_.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    several_hosts |= hosts_.back() != host;
  }
  PERIGEE_ASSIGN_OR_RETURN(Listener listener, Listen(several_hosts));
  // Rank 0's token comes first, the others' are ignored.
  MeshToken token = RandomMeshToken();
  std::vector<std::byte> mine(token.begin(), token.end());
  const std::vector<std::byte> endpoint = EncodeEndpoint(listener.endpoint);
  mine.insert(mine.end(), endpoint.begin(), endpoint.end());
  PERIGEE_ASSIGN_OR_RETURN(const auto said, session_->AllGather(mine, deadline));
  std::vector<Endpoint> endpoints;
  for (const std::vector<std::byte>& bytes : said) {
    if (bytes.size() < token.size()) return InternalError("a rank's address cannot be read");
    PERIGEE_ASSIGN_OR_RETURN(Endpoint decoded, DecodeEndpoint(std::span(bytes).subspan(token.size())));
    endpoints.push_back(std::move(decoded));
  }
  std::copy_n(said[0].begin(), token.size(), token.begin());
  PERIGEE_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets,
                           ConnectMesh(rank(), endpoints, token, std::move(listener), deadline));
  mesh_ = std::make_unique<SocketMesh>(std::move(sockets), Liveness::Period(watchdog),
                                       static_cast<MeshListener*>(this));
  mesh_->StartThread();
  world_ = MakeMpiCommunicator(&board_, group_);
  return Status::Ok();
}

ProcessRanks::~ProcessRanks() {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    lost = !status_.ok();
  }
  if (mesh_ != nullptr && !lost) mesh_->SendToAll(kGoodbye, {});
  world_.reset();
  if (lost) session_->Abandon();
  // Waits for the others to come as far; the mesh still tells when one does not.
  session_.reset();
  if (mesh_ != nullptr) mesh_->Stop();
}

int ProcessRanks::ranks_on_host() const {
  return static_cast<int>(std::ranges::count(hosts_, hosts_[static_cast<size_t>(rank())]));
}

StatusOr<std::vector<std::vector<std::byte>>> ProcessRanks::AllGather(std::span<const std::byte> mine) {
  mesh_->SendToAll(kGather, mine);
  std::unique_lock lock(mutex_);
  gathered_[static_cast<size_t>(rank())].emplace_back(mine.begin(), mine.end());
  const auto complete = [&] {
    return std::ranges::all_of(gathered_, [](const auto& queue) { return !queue.empty(); });
  };
  changed_.wait(lock, [&] { return complete() || !status_.ok(); });
  if (!status_.ok()) return status_;
  std::vector<std::vector<std::byte>> all;
  for (auto& queue : gathered_) {
    all.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return all;
}

void ProcessRanks::Tell(std::span<const std::byte> message) {
  PERIGEE_CHECK(rank() == 0);
  mesh_->SendToAll(kTell, message);
}

std::optional<std::vector<std::byte>> ProcessRanks::Receive() {
  return messages_.Pop();
}

Status ProcessRanks::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void ProcessRanks::Fail(const Status& reason) {
  Lose(reason, true);
}

void ProcessRanks::OnFailure(std::function<void(const Status&)> callback) {
  Status already;
  {
    const std::lock_guard lock(mutex_);
    already = status_;
    if (already.ok()) on_failure_.push_back(callback);
  }
  if (!already.ok()) callback(already);
}

void ProcessRanks::AwaitEndOfRankZero(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return gone_[0]; });
}

void ProcessRanks::OnMessage(int from, uint8_t kind, std::span<const std::byte> payload) {
  bool understood = true;
  switch (kind) {
    case kPulse: {
      ByteReader in(payload);
      const Pulse pulse{.activity = static_cast<Activity>(in.Get<uint8_t>()),
                        .collectives = in.Get<uint64_t>(),
                        .work = in.Get<uint64_t>()};
      understood = in.ok() && in.remaining() == 0 && pulse.activity <= Activity::kWaiting;
      if (understood) liveness_.Observe(from, pulse, Clock::now());
      break;
    }
    case kLeave:
      understood = board_.OnLeave(from, payload);
      break;
    case kAbort:
      understood = board_.OnAbort(payload);
      break;
    case kFail: {
      int tag = 0;
      Status reason;
      understood = DecodeFailure(payload, &tag, &reason);
      if (understood) Lose(reason, false);
      break;
    }
    case kGather: {
      const std::lock_guard lock(mutex_);
      gathered_[static_cast<size_t>(from)].emplace_back(payload.begin(), payload.end());
      changed_.notify_all();
      break;
    }
    case kTell:
      understood = from == 0;
      if (understood) messages_.Push({payload.begin(), payload.end()});
      break;
    case kGoodbye: {
      const std::lock_guard lock(mutex_);
      gone_[static_cast<size_t>(from)] = true;
      liveness_.Forget(from);
      if (from == 0) messages_.Close();
      break;
    }
    default:
      understood = false;
  }
  if (!understood) Lose(InternalError(StrCat(NameOf(from), " sent a message that cannot be read")), true);
}

void ProcessRanks::OnClosed(int rank) {
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    expected = leaving_ || gone_[static_cast<size_t>(rank)] || !status_.ok();
    gone_[static_cast<size_t>(rank)] = true;
    changed_.notify_all();
  }
  liveness_.Forget(rank);
  if (!expected) Lose(Unavailable(StrCat(NameOf(rank), " is gone: its process has ended")), true);
}

void ProcessRanks::OnTick() {
  const Pulse pulse = board_.pulse();
  ByteWriter out;
  out.Put(static_cast<uint8_t>(pulse.activity));
  out.Put(pulse.collectives);
  out.Put(pulse.work);
  mesh_->SendToAll(kPulse, out.bytes());
  liveness_.Observe(rank(), pulse, Clock::now());
  if (const auto verdict = liveness_.Check(Clock::now())) Lose(Unavailable(verdict->reason), true);
}

void ProcessRanks::Lose(const Status& reason, bool tell_others) {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok() || leaving_) return;
    status_ = reason;
    callbacks.swap(on_failure_);
    changed_.notify_all();
  }
  group_->Abort(reason);
  messages_.Close();
  if (tell_others && mesh_ != nullptr) mesh_->SendToAll(kFail, EncodeFailure(0, reason));
  for (const auto& callback : callbacks) callback(reason);
}

std::string ProcessRanks::NameOf(int rank) const {
  const std::string& host = hosts_[static_cast<size_t>(rank)];
  return StrCat("rank ", rank, " on ", host.substr(0, host.find(' ')));
}

}  // namespace perigee::comm
