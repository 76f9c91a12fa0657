#pragma once

#include <string>

#include "base/status.h"
#include "server/http.h"

namespace perigee::server {

// A refusal or failure in the terms of the OpenAI API.
struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string param;  // the field at fault, empty: none
  std::string code;   // empty: none
};

// The one place where a Status becomes an HTTP answer.
ApiError FromStatus(const Status& status);

// {"error": {"message", "type", "param", "code"}}
std::string ErrorBody(const ApiError& error);
HttpResponse ErrorResponse(const ApiError& error);

}  // namespace perigee::server
