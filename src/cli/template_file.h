#pragma once

#include <string>

#include "base/status.h"

namespace perigee::cli {

// The text of a model folder's chat template: chat_template.jinja, else the chat_template of
// tokenizer_config.json (a string, or a list of named ones: all of them). Empty when there is none.
StatusOr<std::string> ReadChatTemplate(const std::string& folder);

}  // namespace perigee::cli
