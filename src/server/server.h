#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "server/http_server.h"
#include "text/tokenizer.h"

namespace perigee::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 30000;               // 0: any free one
  std::string served_model_name;  // empty: the last part of the model's path
  // Busy without progress for longer than this makes /health fail, and so does a token that takes longer
  // /health_generate.
  std::chrono::milliseconds stall_limit{300'000};
  // How long clients may take to read why their answers were cut off at the end.
  std::chrono::milliseconds farewell{2'000};
  int intake_threads = 2;  // parse and tokenise requests
  HttpServerOptions http;  // limits and timeouts; host and port are taken from above
};

// The HTTP front; its endpoints are the table in routes.cc. Listens from Start on, so that /health can say
// that the model is loading; everything else answers 503 until SetReady. Thread-safe.
class Server {
 public:
  // Fails when host and port cannot be listened on.
  static StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // Stops without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Once. Both must outlive the server. Fails when the tokenizer lacks a marker of the chat format.
  Status SetReady(engine::Engine* engine, const text::Tokenizer* tokenizer);

  // The port in use.
  int port() const;
  // Blocks until Stop is called from another thread.
  void Wait();
  // Accepts nothing more, lets running answers finish within `grace`, ends the rest with an error for their
  // clients, and ends all threads. Returns how many requests were cut off. Calling it again does nothing.
  size_t Stop(std::chrono::milliseconds grace);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::server
