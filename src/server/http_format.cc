#include "server/http_format.h"

#include <cstdio>
#include <ctime>

#include "base/strings.h"

namespace perigee::server {
namespace {

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

std::string Date() {
  std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  size_t n = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return std::string(text, n);
}

}  // namespace

std::string FormatResponseHead(const ResponseHeadFields& fields) {
  std::string head =
      StrCat("HTTP/1.1 ", fields.status, " ", Reason(fields.status), "\r\nServer: perigee\r\nDate: ", Date(),
             "\r\nContent-Type: ", fields.content_type, "\r\n");
  if (fields.content_length) {
    head += StrCat("Content-Length: ", *fields.content_length, "\r\n");
  } else {
    head += "Cache-Control: no-cache\r\n";
  }
  if (fields.chunked) head += "Transfer-Encoding: chunked\r\n";
  if (!fields.allow.empty()) head += StrCat("Allow: ", fields.allow, "\r\n");
  if (!fields.keep_alive) head += "Connection: close\r\n";
  return head + "\r\n";
}

std::string FormatChunk(std::string_view bytes) {
  char size[24];
  int n = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return StrCat(std::string_view(size, static_cast<size_t>(n)), bytes, "\r\n");
}

}  // namespace perigee::server
