#include "server/http.h"

#include <algorithm>

namespace perigee::server {

namespace {

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (std::equal(key.begin(), key.end(), name.begin(), name.end(),
                   [](char a, char b) { return Lower(a) == Lower(b); }))
      return value;
  }
  return {};
}

}  // namespace perigee::server
