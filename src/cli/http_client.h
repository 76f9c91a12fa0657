#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace perigee::cli {

// A server's address: http://HOST[:PORT][/PREFIX], HOST possibly an IPv6 address in brackets.
struct HttpUrl {
  std::string host;
  int port = 80;
  std::string prefix;  // without the last slash; empty: none
};
std::optional<HttpUrl> ParseHttpUrl(std::string_view url);

struct HttpReply {
  int status = 0;
  std::string body;
};

// Posts JSON over one connection that is kept open between calls. One thread at a time.
class HttpClient {
 public:
  HttpClient(HttpUrl url, std::chrono::seconds timeout);
  ~HttpClient();

  // kUnavailable when the server cannot be reached or does not answer in time; the message names the URL. A
  // reply of any HTTP status is a success here.
  StatusOr<HttpReply> Post(std::string_view path, std::string body);

 private:
  class Connection;

  HttpUrl url_;
  std::chrono::seconds timeout_;
  std::unique_ptr<Connection> connection_;  // null: not connected
};

}  // namespace perigee::cli
