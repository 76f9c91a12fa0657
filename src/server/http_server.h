#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http.h"

namespace perigee::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // address or name
  int port = 0;                    // 0: any free one
  int io_threads = 2;
  size_t max_connections = 1000;
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 64 << 20;
  // A reader that is this far behind its stream when more comes counts as gone.
  size_t max_unsent_bytes = 64 << 20;
  std::chrono::milliseconds read_timeout{
      60'000};  // for a whole header (and between requests), and for a body
  std::chrono::milliseconds write_timeout{60'000};  // without any progress
  std::chrono::milliseconds linger_timeout{5'000};  // for a client to take its last answer
};

// HTTP/1.1 over TCP: sockets, limits, timeouts, keep-alive, chunked streams, and noticing that a client has
// gone, also while it waits for an answer. A client that closes its sending side counts as gone. Knows no
// model. The handler must outlive the server.
class HttpServer {
 public:
  // Listens and starts the network threads. A bind failure names host and port.
  static StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler* handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port in use.
  int port() const;
  // Stops accepting, closes idle connections and waits up to `grace` for running answers. False when some
  // still run. May be called again for more time.
  bool Drain(std::chrono::milliseconds grace);
  // Drains without grace and drops what is left. Returns once no network thread runs any more. Calling it
  // again does nothing.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::server
