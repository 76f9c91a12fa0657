#pragma once

#include <memory>
#include <string>

#include "server/api_error.h"
#include "server/http.h"

namespace perigee::server {

// One answer over HTTP: a JSON body, or a stream of server-sent events that always ends with [DONE].
class ResponseChannel {
 public:
  ResponseChannel(std::shared_ptr<ResponseWriter> writer, bool stream)
      : writer_(std::move(writer)), stream_(stream) {}

  bool stream() const { return stream_; }
  ResponseWriter& writer() { return *writer_; }

  // Streams only: the point after which a failure can no longer be a status.
  void Open();
  void Event(std::string json);
  void EndStream();

  void SendBody(std::string json);
  // Before the stream is open: an error status. After: one error event, [DONE], and the connection closes.
  void Fail(const ApiError& error);

 private:
  std::shared_ptr<ResponseWriter> writer_;
  bool stream_;
  bool open_ = false;
};

}  // namespace perigee::server
