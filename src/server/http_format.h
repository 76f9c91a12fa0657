#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The bytes of HTTP/1.1 answers.
namespace perigee::server {

struct ResponseHeadFields {
  int status = 200;
  std::string_view content_type;
  std::optional<size_t> content_length;  // absent: a stream
  bool chunked = false;                  // a stream that does not end with its connection
  bool keep_alive = true;
  std::string_view allow;
};

// Status line and fields, with the empty line after them.
std::string FormatResponseHead(const ResponseHeadFields& fields);

// One piece of a chunked body; not for empty bytes, which would end it.
std::string FormatChunk(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kContinueResponse = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace perigee::server
