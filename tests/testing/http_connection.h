#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::test {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // chunks joined
  bool whole = false;                          // false: ended early

  std::string Header(const std::string& name) const;
};

// A plain blocking socket to a server of this machine, for tests that send what no client library would.
class HttpConnection {
 public:
  explicit HttpConnection(int port);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  bool connected() const { return fd_ >= 0; }
  // False when the connection is gone.
  bool Send(std::string_view bytes);
  // One answer; to_head: a HEAD request's, which has no body.
  HttpReply Read(std::chrono::milliseconds limit = std::chrono::seconds(20), bool to_head = false);
  // Reads until what has been received for this answer contains `text`.
  bool ReadUntil(std::string_view text, std::chrono::milliseconds limit = std::chrono::seconds(20));
  // True when the server has closed the connection (within `limit`).
  bool WaitClosed(std::chrono::milliseconds limit = std::chrono::seconds(20));
  void SetReceiveBuffer(int bytes);
  void ShutdownSend();
  void Close();

 private:
  // False at the end of the connection or of the time.
  bool Fill(std::chrono::steady_clock::time_point deadline);

  int fd_ = -1;
  std::string received_;
};

std::string PostText(std::string_view path, std::string_view body, std::string_view extra_headers = {});
HttpReply Post(int port, std::string_view path, std::string_view body, std::string_view extra_headers = {});
HttpReply Get(int port, std::string_view path);

// The data of every server-sent event, in order.
std::vector<std::string> Events(std::string_view body);

}  // namespace perigee::test
