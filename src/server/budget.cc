#include "server/budget.h"

#include <algorithm>
#include <string>

#include "base/strings.h"

namespace perigee::server {

std::optional<ApiError> DecideBudget(const BudgetRequest& request, int64_t& max_new_tokens) {
  const bool pool = request.pool_tokens < request.context_length;
  const int64_t most = pool ? request.pool_tokens : request.context_length;
  const std::string whose = pool ? StrCat("latent pool of ", most, " tokens (--max-total-tokens)")
                                 : StrCat("context of ", most, " tokens");
  const int64_t left = most - request.prompt_tokens;
  auto refuse = [](std::string message, std::string_view param) {
    return ApiError{
        .message = std::move(message), .param = std::string(param), .code = "context_length_exceeded"};
  };
  if (request.prompt_tokens == 0)
    return ApiError{.message = StrCat(request.prompt_field, " holds no token: there is nothing to continue"),
                    .param = std::string(request.prompt_field)};
  if (left <= 0)
    return refuse(StrCat(request.prompt_field, " has ", request.prompt_tokens, " tokens, but the ", whose,
                         " has to hold prompt and answer"),
                  request.prompt_field);
  if (request.max_tokens && *request.max_tokens > left)
    return refuse(StrCat(request.prompt_tokens, " tokens in ", request.prompt_field, " plus ",
                         request.max_tokens_field, " of ", *request.max_tokens, " are more than the ", whose,
                         "; at most ", left, " can be generated"),
                  request.max_tokens_field);
  max_new_tokens = request.max_tokens.value_or(std::min(request.default_tokens.value_or(left), left));
  return std::nullopt;
}

}  // namespace perigee::server
