#include "comm/mesh_setup.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/strings.h"

namespace perigee::comm {
namespace {

using Clock = std::chrono::steady_clock;
using HalfToken = std::array<std::byte, 32>;

// How long a new connection may take to say who it is, and how many may be about to.
constexpr std::chrono::seconds kIntroductionTime{5};
constexpr size_t kMaxStrangers = 64;

// The first bytes in each direction.
struct Introduction {
  uint64_t magic = 0x6565676972657001;  // with the version of the mesh's messages in the last byte
  uint32_t rank = 0;
  uint32_t size = 0;
  HalfToken token{};
};

Introduction Introduce(int rank, size_t size, const MeshToken& token, bool caller) {
  Introduction mine{.rank = static_cast<uint32_t>(rank), .size = static_cast<uint32_t>(size)};
  std::copy_n(token.begin() + (caller ? 0 : mine.token.size()), mine.token.size(), mine.token.begin());
  return mine;
}

// Equal in everything but the rank; as long for a near miss as for a wild guess.
bool Belongs(const Introduction& theirs, const Introduction& expected) {
  std::byte difference{0};
  for (size_t i = 0; i < theirs.token.size(); ++i) difference |= theirs.token[i] ^ expected.token[i];
  return difference == std::byte{0} && theirs.magic == expected.magic && theirs.size == expected.size;
}

std::span<std::byte> BytesOf(Introduction& introduction) {
  return std::as_writable_bytes(std::span(&introduction, 1));
}

// Somebody who has connected and not yet said everything.
struct Stranger {
  UniqueFd fd;
  Introduction said;
  size_t received = 0;
  Clock::time_point deadline;
};

class Acceptor {
 public:
  Acceptor(int rank, const MeshToken& token, Listener listener, std::vector<UniqueFd>& sockets)
      : rank_(rank), token_(token), listener_(std::move(listener)), sockets_(sockets) {}

  // Until every rank above this one is there.
  Status Run(Clock::time_point deadline) {
    while (!Missing().empty()) {
      if (Clock::now() >= deadline) {
        return InternalError(
            StrCat("rank ", rank_, " was not reached by ", Missing(), ": is a firewall between the hosts?"));
      }
      Wait(deadline);
    }
    return Status::Ok();
  }

 private:
  std::string Missing() const {
    std::string ranks;
    for (size_t r = static_cast<size_t>(rank_) + 1; r < sockets_.size(); ++r) {
      if (!sockets_[r].open()) ranks += StrCat(ranks.empty() ? "rank " : ", rank ", r);
    }
    return ranks;
  }

  void Wait(Clock::time_point deadline) {
    std::vector<pollfd> watched;
    for (const UniqueFd* fd : {&listener_.unix_socket, &listener_.tcp4, &listener_.tcp6}) {
      watched.push_back({fd->get(), POLLIN, 0});  // poll leaves out those that are not open
    }
    const size_t listeners = watched.size();
    for (const Stranger& s : strangers_) {
      watched.push_back({s.fd.get(), POLLIN, 0});
      deadline = std::min(deadline, s.deadline);
    }
    if (poll(watched.data(), watched.size(), PollMilliseconds(deadline)) < 0) return;
    for (size_t s = 0; s < strangers_.size(); ++s) {
      if (watched[listeners + s].revents != 0) Listen(strangers_[s]);
    }
    std::erase_if(strangers_, [](const Stranger& s) { return !s.fd.open() || Clock::now() >= s.deadline; });
    for (size_t l = 0; l < listeners; ++l) {
      if (watched[l].revents != 0) Accept(watched[l].fd);
    }
  }

  void Accept(int listener) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.open() || strangers_.size() >= kMaxStrangers) return;
    strangers_.push_back({.fd = std::move(fd), .deadline = Clock::now() + kIntroductionTime});
  }

  // Takes what the stranger says; the descriptor is closed or moved away when that is decided.
  void Listen(Stranger& stranger) {
    const std::span<std::byte> rest = BytesOf(stranger.said).subspan(stranger.received);
    const ssize_t n = recv(stranger.fd.get(), rest.data(), rest.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return stranger.fd.Reset();
    stranger.received += static_cast<size_t>(n);
    if (static_cast<size_t>(n) < rest.size()) return;
    const size_t rank = stranger.said.rank;
    if (!Belongs(stranger.said, Introduce(rank_, sockets_.size(), token_, true)) ||
        rank <= static_cast<size_t>(rank_) || rank >= sockets_.size() || sockets_[rank].open()) {
      LogWarning(StrCat("rank ", rank_, ": a connection that is no rank of this start was dropped"));
      return stranger.fd.Reset();
    }
    Introduction mine = Introduce(rank_, sockets_.size(), token_, false);
    if (!SendAll(stranger.fd.get(), BytesOf(mine), stranger.deadline)) return stranger.fd.Reset();
    const int on = 1;  // has no effect on a Unix socket
    setsockopt(stranger.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockets_[rank] = std::move(stranger.fd);
  }

  const int rank_;
  const MeshToken& token_;
  const Listener listener_;
  std::vector<UniqueFd>& sockets_;
  std::vector<Stranger> strangers_;
};

StatusOr<UniqueFd> Call(int rank, size_t to, std::span<const Endpoint> endpoints, const MeshToken& token,
                        Clock::time_point deadline) {
  const Endpoint& own = endpoints[static_cast<size_t>(rank)];
  PERIGEE_ASSIGN_OR_RETURN(UniqueFd fd, Connect(endpoints[to], own.host, deadline));
  Introduction mine = Introduce(rank, endpoints.size(), token, true);
  Introduction theirs;
  const Introduction expected = Introduce(static_cast<int>(to), endpoints.size(), token, false);
  if (!SendAll(fd.get(), BytesOf(mine), deadline) || !ReceiveAll(fd.get(), BytesOf(theirs), deadline) ||
      !Belongs(theirs, expected) || theirs.rank != expected.rank) {
    return InternalError("who answers is not that rank");
  }
  return fd;
}

}  // namespace

MeshToken RandomMeshToken() {
  MeshToken token;
  PERIGEE_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  return token;
}

std::vector<std::byte> EncodeEndpoint(const Endpoint& endpoint) {
  ByteWriter out;
  out.PutText(endpoint.host);
  out.PutText(endpoint.unix_name);
  out.Put(endpoint.port);
  out.Put(static_cast<uint32_t>(endpoint.addresses.size()));
  for (const std::string& address : endpoint.addresses) out.PutText(address);
  return out.Take();
}

StatusOr<Endpoint> DecodeEndpoint(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Endpoint endpoint{.host = in.GetText(), .unix_name = in.GetText(), .port = in.Get<uint16_t>()};
  for (auto count = in.Get<uint32_t>(); count > 0 && in.ok(); --count)
    endpoint.addresses.push_back(in.GetText());
  if (!in.ok() || in.remaining() != 0) return InternalError("a rank's address cannot be read");
  return endpoint;
}

StatusOr<std::vector<UniqueFd>> ConnectMesh(int rank, std::span<const Endpoint> endpoints,
                                            const MeshToken& token, Listener listener,
                                            Clock::time_point deadline) {
  std::vector<UniqueFd> sockets(endpoints.size());
  for (size_t to = 0; to < static_cast<size_t>(rank); ++to) {
    StatusOr<UniqueFd> connected = Call(rank, to, endpoints, token, deadline);
    if (!connected.ok()) {
      return InternalError(
          StrCat("rank ", rank, " cannot reach rank ", to, ": ", connected.status().message()));
    }
    sockets[to] = std::move(connected).value();
  }
  Acceptor acceptor(rank, token, std::move(listener), sockets);
  PERIGEE_RETURN_IF_ERROR(acceptor.Run(deadline));
  return sockets;
}

}  // namespace perigee::comm
