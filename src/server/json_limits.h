#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perigee::server {

// What a body may cost before it is parsed: a parsed value takes many times its text, and looking up a member
// of an ordered object is linear.
struct JsonLimits {
  size_t max_depth = 64;
  size_t max_members = 1024;    // of one object
  size_t max_values = 4 << 20;  // in the whole text
};

// One pass over text that need not be valid JSON. Empty, or what is over the limit.
std::string ExceededJsonLimit(std::string_view text, const JsonLimits& limits = {});

}  // namespace perigee::server
