#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace perigee::engine {

// What a model is and costs, as lines of text for a person: layers, parameters, stored bytes, and the memory
// of a token and of a sequence. Nothing is loaded: a folder's headers are read and checked against its
// config.json, and the text says that the check passed.
StatusOr<std::string> SummarizeFolder(const std::string& folder);

// The same for a published shape ("kimi-linear-48b"), without any weights.
StatusOr<std::string> SummarizeShape(std::string_view name);

}  // namespace perigee::engine
