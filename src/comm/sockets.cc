#include "comm/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/strings.h"

namespace perigee::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBacklog = 64;

// An address of any family, with its length.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address UnixAddress(const std::string& name) {
  Address address;
  sockaddr_un un{.sun_family = AF_UNIX};
  PERIGEE_CHECK(name.size() + 1 < sizeof un.sun_path);
  std::copy(name.begin(), name.end(), un.sun_path + 1);  // a leading zero: the abstract namespace
  std::memcpy(&address.storage, &un, sizeof un);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// False when the text is no numeric address.
bool ParseAddress(const std::string& text, uint16_t port, Address* address) {
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(port)};
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    std::memcpy(&address->storage, &v4, sizeof v4);
    address->size = sizeof v4;
    return true;
  }
  sockaddr_in6 v6{.sin6_family = AF_INET6, .sin6_port = htons(port)};
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) != 1) return false;
  std::memcpy(&address->storage, &v6, sizeof v6);
  address->size = sizeof v6;
  return true;
}

Status SystemError(const std::string& what) {
  return InternalError(StrCat(what, ": ", std::strerror(errno)));
}

StatusOr<UniqueFd> OpenListener(const Address& address, const std::string& what) {
  UniqueFd fd(socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open()) return SystemError(StrCat("socket for ", what));
  const int on = 1;
  if (address.get()->sa_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (bind(fd.get(), address.get(), address.size) != 0 || listen(fd.get(), kBacklog) != 0) {
    return SystemError(StrCat("listening on ", what));
  }
  return fd;
}

uint16_t BoundPort(int fd) {
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  PERIGEE_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  return ntohs(bound.sin_port);
}

// Link-local IPv6 addresses are left out: they mean nothing without the name of an interface.
std::vector<std::string> InterfaceAddresses() {
  std::vector<std::string> addresses, loopback;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* raw = nullptr;
    if (at->ifa_addr->sa_family == AF_INET) {
      raw = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
      if (!IN6_IS_ADDR_LINKLOCAL(&v6)) raw = &v6;
    }
    if (raw == nullptr || inet_ntop(at->ifa_addr->sa_family, raw, text.data(), text.size()) == nullptr)
      continue;
    ((at->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).emplace_back(text.data());
  }
  freeifaddrs(list);
  addresses.insert(addresses.end(), loopback.begin(), loopback.end());
  return addresses;
}

std::string RandomName() {
  std::array<unsigned char, 12> random{};
  PERIGEE_CHECK(getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size()));
  std::string name = "perigee-";
  for (const unsigned char byte : random) {
    constexpr char kDigits[] = "0123456789abcdef";
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

StatusOr<UniqueFd> ConnectTo(const Address& address, const std::string& what, Clock::time_point deadline) {
  UniqueFd fd(socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open()) return SystemError(StrCat("socket for ", what));
  if (connect(fd.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return SystemError(what);
    pollfd writable{fd.get(), POLLOUT, 0};
    if (poll(&writable, 1, PollMilliseconds(deadline)) <= 0)
      return InternalError(StrCat(what, ": no answer"));
    socklen_t size = sizeof errno;
    int error = 0;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return InternalError(StrCat(what, ": ", std::strerror(error)));
  }
  if (address.get()->sa_family != AF_UNIX) {
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return fd;
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

StatusOr<Listener> Listen(bool with_tcp) {
  Listener listener;
  listener.endpoint.host = HostIdentity();
  listener.endpoint.unix_name = RandomName();
  PERIGEE_ASSIGN_OR_RETURN(listener.unix_socket,
                           OpenListener(UnixAddress(listener.endpoint.unix_name), "a Unix socket"));
  if (!with_tcp) return listener;
  Address any;
  PERIGEE_CHECK(ParseAddress("0.0.0.0", 0, &any));
  PERIGEE_ASSIGN_OR_RETURN(listener.tcp4, OpenListener(any, "a TCP port"));
  listener.endpoint.port = BoundPort(listener.tcp4.get());
  PERIGEE_CHECK(ParseAddress("::", listener.endpoint.port, &any));
  if (auto tcp6 = OpenListener(any, "an IPv6 TCP port"); tcp6.ok()) listener.tcp6 = std::move(tcp6).value();
  for (std::string& address : InterfaceAddresses()) {
    const bool v6 = address.find(':') != std::string::npos;
    if (!v6 || listener.tcp6.open()) listener.endpoint.addresses.push_back(std::move(address));
  }
  return listener;
}

StatusOr<UniqueFd> Connect(const Endpoint& to, const std::string& from_host, Clock::time_point deadline) {
  if (to.host == from_host)
    return ConnectTo(UnixAddress(to.unix_name), "a Unix socket of this host", deadline);
  std::string tried;
  for (size_t i = 0; i < to.addresses.size(); ++i) {
    Address address;
    if (!ParseAddress(to.addresses[i], to.port, &address)) continue;
    // An address that swallows everything must leave time for the others.
    const auto left = std::max(deadline - Clock::now(), Clock::duration::zero());
    const auto share = left / static_cast<int64_t>(to.addresses.size() - i);
    auto connected = ConnectTo(address, StrCat(to.addresses[i], " port ", to.port), Clock::now() + share);
    if (connected.ok()) return connected;
    tried += StrCat(tried.empty() ? "" : "; ", connected.status().message());
  }
  return InternalError(
      StrCat("no address of host ", Quoted(to.host), " answers: ", tried.empty() ? "it has none" : tried));
}

std::string HostIdentity() {
  utsname name{};
  uname(&name);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  const bool known = stat("/proc/self/ns/net", &net) == 0;
  return StrCat(name.nodename, " ", boot, " ", known ? static_cast<uint64_t>(net.st_ino) : 0);
}

int PollMilliseconds(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
}

bool SendAll(int fd, std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EINTR) {
      pollfd writable{fd, POLLOUT, 0};
      if (poll(&writable, 1, PollMilliseconds(deadline)) <= 0) return false;
    } else {
      return false;
    }
  }
  return true;
}

bool ReceiveAll(int fd, std::span<std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      pollfd readable{fd, POLLIN, 0};
      if (poll(&readable, 1, PollMilliseconds(deadline)) <= 0) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace perigee::comm
