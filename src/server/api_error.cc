#include "server/api_error.h"

#include <optional>

#include "server/json_writer.h"

namespace perigee::server {
namespace {

int HttpStatus(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:  // by us: a client that cancels is no longer there to be told
      return 503;
    case StatusCode::kUsage:  // flags are read before a request can come
    case StatusCode::kInternal:
      return 500;
  }
  return 500;
}

std::optional<std::string> OrNull(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace

ApiError FromStatus(const Status& status) {
  return {.status = HttpStatus(status.code()), .message = status.message()};
}

std::string ErrorBody(const ApiError& error) {
  JsonWriter w;
  w.BeginObject().Key("error").BeginObject();
  w.Field("message", error.message);
  w.Field("type", error.status >= 500 ? "server_error" : "invalid_request_error");
  w.Field("param", OrNull(error.param));
  w.Field("code", OrNull(error.code));
  w.EndObject().EndObject();
  return w.Take();
}

HttpResponse ErrorResponse(const ApiError& error) {
  return {.status = error.status, .body = ErrorBody(error)};
}

}  // namespace perigee::server
