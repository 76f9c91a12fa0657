#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace perigee::comm {

// An open file descriptor that closes with the object.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

// Where a rank listens for the others.
struct Endpoint {
  std::string host;       // equal strings: the same machine and network, so a Unix socket reaches it
  std::string unix_name;  // in the abstract namespace: nothing is left behind in the file system
  std::vector<std::string> addresses;  // numeric IPv4 and IPv6 addresses of its interfaces, loopback last
  uint16_t port = 0;
};

// Listening sockets that accept on the endpoint. Non-blocking.
struct Listener {
  UniqueFd unix_socket;
  UniqueFd tcp4;
  UniqueFd tcp6;  // not open where the machine has no IPv6
  Endpoint endpoint;
};

// Listens on a fresh Unix name, and (with_tcp) on one free TCP port of all interfaces.
StatusOr<Listener> Listen(bool with_tcp);

// Connects to `to`: by Unix socket when `from_host` is its host, else to the first of its addresses that
// answers. The descriptor is non-blocking, with TCP_NODELAY. Errors say what was tried.
StatusOr<UniqueFd> Connect(const Endpoint& to, const std::string& from_host,
                           std::chrono::steady_clock::time_point deadline);

// Machine, boot and network namespace, in one string.
std::string HostIdentity();

// Milliseconds until then for poll(2), rounded up, at least 0.
int PollMilliseconds(std::chrono::steady_clock::time_point deadline);

// Sends or receives exactly these bytes on a non-blocking socket, or false at the deadline or a closed
// socket.
bool SendAll(int fd, std::span<const std::byte> bytes, std::chrono::steady_clock::time_point deadline);
bool ReceiveAll(int fd, std::span<std::byte> bytes, std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::comm
