#pragma once

#include <memory>
#include <string>

#include "server/api_error.h"
#include "server/http.h"
#include "server/request_record.h"

namespace perigee::server {

// One answer over HTTP: a JSON body, or a stream of server-sent events that always ends with [DONE]. Its end
// goes to the request's record, before the client can know of it. Copies are the same answer.
class ResponseChannel {
 public:
  ResponseChannel(std::shared_ptr<ResponseWriter> writer, std::shared_ptr<RequestRecord> record)
      : writer_(std::move(writer)), record_(std::move(record)) {}

  // A body unless this was called; before anything is sent.
  void SetStream(bool stream) { stream_ = stream; }
  bool stream() const { return stream_; }
  ResponseWriter& writer() { return *writer_; }
  const RequestRecord& record() const { return *record_; }

  // Streams only: the point after which a failure can no longer be a status.
  void Open();
  void Event(std::string json);
  void EndStream();

  void SendBody(std::string json);
  // Before the stream is open: an error status. After: one error event, [DONE], and the connection closes.
  void Fail(const ApiError& error);

 private:
  std::shared_ptr<ResponseWriter> writer_;
  std::shared_ptr<RequestRecord> record_;
  bool stream_ = false;
  bool open_ = false;
};

}  // namespace perigee::server
