#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "server/api_error.h"

namespace perigee::server {

struct BudgetRequest {
  int64_t prompt_tokens = 0;
  int64_t context_length = 0;             // of the model
  int64_t pool_tokens = 0;                // that the latent pool holds, for all requests together
  std::optional<int64_t> max_tokens;      // asked for
  std::optional<int64_t> default_tokens;  // of the endpoint; absent: all that is left
  std::string_view prompt_field;          // "messages"
  std::string_view max_tokens_field;      // "max_tokens"
};

// How many tokens an answer may have. A prompt that fills the context, or the pool, is refused, and so is a
// sum that the request asked for and that does not fit; a default is cut to what is left.
std::optional<ApiError> DecideBudget(const BudgetRequest& request, int64_t& max_new_tokens);

}  // namespace perigee::server
