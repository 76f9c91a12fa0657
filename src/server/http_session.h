#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "server/http.h"
#include "server/http_server.h"

namespace boost::asio {
class io_context;
}

namespace perigee::server {

struct SessionShared;

// The open connections of one server and the event loop that they run on. Sessions and writers share the
// ownership of what is inside, so a writer may outlive the group.
class SessionGroup {
 public:
  SessionGroup(HttpServerOptions options, HttpHandler* handler);
  ~SessionGroup();

  boost::asio::io_context& io();
  // Takes over a connected socket (of address family `family`) and serves it.
  void Adopt(int socket_fd, int family);

  // From now on connections end with their present answer, idle ones at once.
  void Drain();
  // Drops all connections; their requests count as disconnected.
  void Abort();
  bool WaitEmpty(std::chrono::milliseconds limit);
  // After the loop's threads have ended: what still arrives is dropped.
  void Seal();

 private:
  std::shared_ptr<SessionShared> shared_;
};

}  // namespace perigee::server
