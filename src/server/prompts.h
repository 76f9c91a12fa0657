#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/request_fields.h"
#include "server/serving_context.h"

namespace perigee::server {

// Raw prompts as ids, each with its budget, into `generation`. Texts in which special strings are recognised
// become control ids unless the request says otherwise.
std::optional<ApiError> EncodePrompts(const ServingContext& context, PromptFields prompt,
                                      std::optional<int64_t> max_tokens, int64_t default_tokens,
                                      std::string_view prompt_field, std::string_view max_tokens_field,
                                      GenerationRequest& generation);

}  // namespace perigee::server
