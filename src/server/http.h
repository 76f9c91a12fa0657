#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What passes between the HTTP server and the code that answers: plain data, no model, no socket.
namespace perigee::server {

struct HttpRequest {
  std::string method;  // upper case: "GET"
  std::string path;    // as received (percent-encoded), without the query
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::chrono::steady_clock::time_point arrived;  // when it had been read whole

  // First header of that name (case does not matter), empty when absent.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::string allow;  // with status 405: the methods that the path has
};

// The answer to one request: either one Send, or StartStream, any number of Writes, and Finish. Every method
// may be called from any thread and returns at once; calls take effect in the order in which they were made.
// After the client has gone all of them do nothing. Dropping the writer without an end fails the request.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void Send(HttpResponse response) = 0;
  virtual void StartStream(std::string content_type) = 0;
  virtual void Write(std::string bytes) = 0;
  // Ends a stream; with `close` the connection too.
  virtual void Finish(bool close) = 0;

  // `hook` runs once if the client goes away before the answer has been written, at once if it already has.
  // It runs on a network thread and must not block.
  virtual void OnDisconnect(std::function<void()> hook) = 0;
  virtual bool disconnected() const = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called on a network thread: must not block.
  virtual void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) = 0;
  // The answer to something that never became a request (malformed, too large, too many connections).
  virtual HttpResponse ProtocolError(int status, const std::string& message) = 0;
};

}  // namespace perigee::server
