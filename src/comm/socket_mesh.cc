#include "comm/socket_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace perigee::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Before each payload.
struct Header {
  uint32_t size = 0;
  uint32_t kind = 0;
};

// For what is unsent at the end.
constexpr std::chrono::milliseconds kLastWords{500};

}  // namespace

SocketMesh::SocketMesh(std::vector<UniqueFd> sockets, std::chrono::milliseconds period,
                       MeshListener* listener)
    : period_(period), listener_(listener), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  PERIGEE_CHECK(wake_fd_.open() && listener != nullptr);
  for (UniqueFd& fd : sockets) {
    peers_.push_back(fd.open() ? std::make_unique<Peer>() : nullptr);
    if (fd.open()) peers_.back()->fd = std::move(fd);
  }
}

void SocketMesh::StartThread() {
  thread_ = std::thread([this] { Loop(); });
}

SocketMesh::~SocketMesh() {
  Stop();
}

void SocketMesh::Stop() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  const Clock::time_point deadline = Clock::now() + kLastWords;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    const std::lock_guard lock(peer->mutex);
    while (!peer->closed && !Flush(*peer) && Clock::now() < deadline) {
      pollfd writable{peer->fd.get(), POLLOUT, 0};
      poll(&writable, 1, PollMilliseconds(deadline));
    }
    peer->closed = true;
    peer->fd.Reset();
  }
}

SocketMesh::Frame SocketMesh::MakeFrame(uint8_t kind, std::span<const std::byte> payload) {
  PERIGEE_CHECK(payload.size() <= kMaxPayload);
  const Header header{.size = static_cast<uint32_t>(payload.size()), .kind = kind};
  auto frame = std::make_shared<std::vector<std::byte>>(sizeof header + payload.size());
  std::memcpy(frame->data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(frame->data() + sizeof header, payload.data(), payload.size());
  return frame;
}

void SocketMesh::Send(int to, uint8_t kind, std::span<const std::byte> payload) {
  Peer* peer = peers_[static_cast<size_t>(to)].get();
  PERIGEE_CHECK_MSG(peer != nullptr, "a message to the rank itself");
  SendFrame(*peer, MakeFrame(kind, payload));
}

void SocketMesh::SendToAll(uint8_t kind, std::span<const std::byte> payload) {
  const Frame frame = MakeFrame(kind, payload);
  for (const auto& peer : peers_) {
    if (peer != nullptr) SendFrame(*peer, frame);
  }
}

void SocketMesh::SendFrame(Peer& peer, const Frame& frame) {
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.closed) return;
    peer.unsent.push_back(frame);
    if (peer.unsent.size() > 1 || Flush(peer)) return;
  }
  Wake();  // the loop is to watch for the socket's taking more
}

bool SocketMesh::Flush(Peer& peer) {
  while (!peer.unsent.empty()) {
    const std::vector<std::byte>& frame = *peer.unsent.front();
    const ssize_t n = send(peer.fd.get(), frame.data() + peer.sent_of_first,
                           frame.size() - peer.sent_of_first, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) {
      // Reading will see why; what it would have got is lost with it.
      peer.unsent.clear();
      peer.sent_of_first = 0;
      return true;
    }
    peer.sent_of_first += static_cast<size_t>(n);
    if (peer.sent_of_first < frame.size()) continue;
    peer.unsent.pop_front();
    peer.sent_of_first = 0;
  }
  return true;
}

void SocketMesh::Loop() {
  Clock::time_point next_tick = Clock::now();
  while (!stopping_) {
    std::vector<pollfd> watched = {{wake_fd_.get(), POLLIN, 0}};
    for (const auto& peer : peers_) {
      if (peer == nullptr) {
        watched.push_back({-1, 0, 0});
        continue;
      }
      const std::lock_guard lock(peer->mutex);
      const short events = static_cast<short>(POLLIN | (peer->unsent.empty() ? 0 : POLLOUT));
      watched.push_back({peer->closed ? -1 : peer->fd.get(), events, 0});
    }
    poll(watched.data(), watched.size(), PollMilliseconds(next_tick));
    uint64_t wakes = 0;
    if (watched[0].revents != 0) (void)!read(wake_fd_.get(), &wakes, sizeof wakes);
    for (size_t r = 0; r < peers_.size(); ++r) {
      const short happened = watched[r + 1].revents;
      if ((happened & POLLOUT) != 0) {
        const std::lock_guard lock(peers_[r]->mutex);
        Flush(*peers_[r]);
      }
      if ((happened & ~POLLOUT) != 0) Receive(static_cast<int>(r), *peers_[r]);
    }
    if (Clock::now() < next_tick) continue;
    listener_->OnTick();
    next_tick = Clock::now() + period_;
  }
}

void SocketMesh::Receive(int rank, Peer& peer) {
  std::array<std::byte, 65536> buffer;
  while (true) {
    const ssize_t n = recv(peer.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return Close(rank, peer);
    peer.received.insert(peer.received.end(), buffer.begin(), buffer.begin() + n);
    if (!Deliver(rank, peer)) return Close(rank, peer);
  }
}

bool SocketMesh::Deliver(int rank, Peer& peer) {
  size_t at = 0;
  while (peer.received.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, peer.received.data() + at, sizeof header);
    if (header.size > kMaxPayload || header.kind > UINT8_MAX) return false;
    const size_t end = at + sizeof header + header.size;
    if (end > peer.received.size()) break;
    listener_->OnMessage(rank, static_cast<uint8_t>(header.kind),
                         std::span(peer.received).subspan(at + sizeof header, header.size));
    at = end;
  }
  peer.received.erase(peer.received.begin(), peer.received.begin() + static_cast<int64_t>(at));
  return true;
}

void SocketMesh::Close(int rank, Peer& peer) {
  {
    const std::lock_guard lock(peer.mutex);
    peer.closed = true;
    peer.unsent.clear();
  }
  shutdown(peer.fd.get(), SHUT_RDWR);
  listener_->OnClosed(rank);
}

void SocketMesh::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_.get(), &one, sizeof one);
}

}  // namespace perigee::comm
