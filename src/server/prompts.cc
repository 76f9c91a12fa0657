#include "server/prompts.h"

#include <utility>

#include "base/strings.h"

#include "server/budget.h"

namespace perigee::server {

std::optional<ApiError> EncodePrompts(const ServingContext& context, PromptFields prompt,
                                      std::optional<int64_t> max_tokens, int64_t default_tokens,
                                      std::string_view prompt_field, std::string_view max_tokens_field,
                                      GenerationRequest& generation) {
  using Specials = text::Tokenizer::Specials;
  if (prompt.batch) generation.list_field = prompt_field;
  generation.prompts = std::move(prompt.ids);
  for (const std::string& text : prompt.texts) {
    generation.prompts.push_back(context.tokenizer->Encode(
        text, prompt.allow_special_tokens ? Specials::kRecognise : Specials::kPlainText));
  }
  for (const auto& ids : generation.prompts) {
    const std::string field = prompt.batch ? StrCat(prompt_field, "[", generation.max_new_tokens.size(), "]")
                                           : std::string(prompt_field);
    auto error = DecideBudget({.prompt_tokens = static_cast<int64_t>(ids.size()),
                               .context_length = context.engine->model_info().context_length,
                               .pool_tokens = context.engine->model_info().max_total_tokens,
                               .max_tokens = max_tokens,
                               .default_tokens = default_tokens,
                               .prompt_field = field,
                               .max_tokens_field = max_tokens_field},
                              generation.max_new_tokens.emplace_back());
    if (error) return error;
  }
  return std::nullopt;
}

}  // namespace perigee::server
