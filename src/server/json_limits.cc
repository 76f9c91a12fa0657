#include "server/json_limits.h"

#include <vector>

#include "base/strings.h"

namespace perigee::server {

std::string ExceededJsonLimit(std::string_view text, const JsonLimits& limits) {
  std::vector<size_t> members;  // of the objects and arrays that are open
  size_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      members.push_back(0);
      ++values;
      if (members.size() > limits.max_depth)
        return StrCat("is nested deeper than ", limits.max_depth, " levels");
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty()) {
      if (++members.back() > limits.max_members)
        return StrCat("has an object with more than ", limits.max_members, " members");
    } else if (c == ',') {
      ++values;
    }
    if (values > limits.max_values) return StrCat("has more than ", limits.max_values, " values");
  }
  return {};
}

}  // namespace perigee::server
