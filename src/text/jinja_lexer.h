#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perigee::text {

// A word, string, number or operator inside a Jinja tag.
struct JinjaToken {
  enum class Kind { kName, kString, kNumber, kOperator };
  Kind kind;
  std::string text;  // strings without quotes and escapes; operators are single characters
};

// A stretch of a template: text that it prints as it stands, or a tag. Comments are left out.
struct JinjaChunk {
  enum class Kind { kText, kExpression, kStatement };
  Kind kind;
  std::string text;                // kText
  std::vector<JinjaToken> tokens;  // tags
};

// The chunks of a template under the settings chat templates are run with (trim_blocks, lstrip_blocks, no
// newline kept at the end): white space that these or a "-" at a tag would remove is gone. Fails on a tag or
// string that is not closed. Linear time.
StatusOr<std::vector<JinjaChunk>> LexJinja(std::string_view source);

}  // namespace perigee::text
