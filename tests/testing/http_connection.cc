#include "testing/http_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "base/strings.h"

namespace perigee::test {

using Clock = std::chrono::steady_clock;

std::string HttpReply::Header(const std::string& name) const {
  auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

HttpConnection::HttpConnection(int port) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Close();
}

HttpConnection::~HttpConnection() {
  Close();
}

void HttpConnection::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpConnection::ShutdownSend() {
  ::shutdown(fd_, SHUT_WR);
}

void HttpConnection::SetReceiveBuffer(int bytes) {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

bool HttpConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool HttpConnection::Fill(Clock::time_point deadline) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd poller{fd_, POLLIN, 0};
  if (left < 0 || ::poll(&poller, 1, static_cast<int>(left)) <= 0) return false;
  char buffer[64 << 10];
  ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  received_.append(buffer, static_cast<size_t>(n));
  return true;
}

bool HttpConnection::ReadUntil(std::string_view text, std::chrono::milliseconds limit) {
  auto deadline = Clock::now() + limit;
  while (received_.find(text) == std::string::npos) {
    if (!Fill(deadline)) return false;
  }
  return true;
}

bool HttpConnection::WaitClosed(std::chrono::milliseconds limit) {
  auto deadline = Clock::now() + limit;
  while (Fill(deadline)) {
  }
  return Clock::now() < deadline;
}

HttpReply HttpConnection::Read(std::chrono::milliseconds limit, bool to_head) {
  auto deadline = Clock::now() + limit;
  HttpReply reply;
  size_t head_end;
  do {
    while ((head_end = received_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill(deadline)) return reply;
    }
    reply.status = std::atoi(received_.c_str() + std::string_view("HTTP/1.1 ").size());
    size_t line = received_.find("\r\n") + 2;
    while (line < head_end + 2) {
      size_t end = received_.find("\r\n", line), colon = received_.find(':', line);
      std::string name = received_.substr(line, colon - line);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      reply.headers[name] = received_.substr(colon + 2, end - colon - 2);
      line = end + 2;
    }
    received_.erase(0, head_end + 4);
  } while (reply.status == 100);

  if (to_head) {
    reply.whole = true;
  } else if (reply.headers.count("content-length") != 0) {
    size_t length = std::stoul(reply.headers["content-length"]);
    while (received_.size() < length && Fill(deadline)) {
    }
    reply.whole = received_.size() >= length;
    reply.body = received_.substr(0, length);
    received_.erase(0, reply.body.size());
  } else if (reply.headers.count("transfer-encoding") != 0) {
    while (true) {
      size_t line_end;
      while ((line_end = received_.find("\r\n")) == std::string::npos) {
        if (!Fill(deadline)) return reply;
      }
      size_t size = std::stoul(received_.substr(0, line_end), nullptr, 16);
      while (received_.size() < line_end + 2 + size + 2) {
        if (!Fill(deadline)) return reply;
      }
      reply.body += received_.substr(line_end + 2, size);
      received_.erase(0, line_end + 2 + size + 2);
      if (size == 0) break;
    }
    reply.whole = true;
  } else {
    while (Fill(deadline)) {
    }
    reply.body = std::exchange(received_, {});
    reply.whole = Clock::now() < deadline;
  }
  return reply;
}

std::string PostText(std::string_view path, std::string_view body, std::string_view extra_headers) {
  return StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n", extra_headers,
                "Content-Length: ", body.size(), "\r\n\r\n", body);
}

HttpReply Post(int port, std::string_view path, std::string_view body, std::string_view extra_headers) {
  HttpConnection connection(port);
  connection.Send(PostText(path, body, extra_headers));
  return connection.Read();
}

HttpReply Get(int port, std::string_view path) {
  HttpConnection connection(port);
  connection.Send(StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n\r\n"));
  return connection.Read();
}

std::vector<std::string> Events(std::string_view body) {
  constexpr std::string_view kData = "data: ";
  std::vector<std::string> events;
  for (size_t end = body.find("\n\n"); end != std::string_view::npos; end = body.find("\n\n")) {
    std::string_view event = body.substr(0, end);
    if (event.substr(0, kData.size()) == kData) event.remove_prefix(kData.size());
    events.emplace_back(event);
    body.remove_prefix(end + 2);
  }
  return events;
}

}  // namespace perigee::test
