#include "engine/request_check.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/strings.h"

namespace perigee::engine {
namespace {

Status CheckIds(std::span<const TokenId> ids, std::string_view what, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return InvalidArgument(StrCat(what, " ", i, " is ", ids[i], ": token ids go from 0 to ", vocab_size - 1));
  }
  return Status::Ok();
}

Status CheckLength(int64_t prompt, int64_t answer, const ModelInfo& model) {
  if (prompt >= model.context_length) {
    return InvalidArgument(StrCat("the prompt has ", prompt, " tokens, but the context length is ",
                                  model.context_length, " and must leave room for an answer"));
  }
  if (answer > model.context_length - prompt) {
    return InvalidArgument(StrCat("the prompt of ", prompt, " tokens and an answer of up to ", answer,
                                  " do not fit into the context length of ", model.context_length,
                                  ": at most ", model.context_length - prompt, " are left for the answer"));
  }
  if (answer > model.max_total_tokens - prompt) {
    return InvalidArgument(StrCat("the prompt of ", prompt, " tokens and an answer of up to ", answer,
                                  " do not fit into the pool of ", model.max_total_tokens,
                                  " tokens (--max-total-tokens)"));
  }
  return Status::Ok();
}

Status CheckSampling(const SamplingParams& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return InvalidArgument(StrCat("temperature ", sampling.temperature, ": give a number from 0 up"));
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return InvalidArgument(StrCat("top_p ", sampling.top_p, ": give a number above 0 and up to 1"));
  }
  if (sampling.top_k < 0) {
    return InvalidArgument(StrCat("top_k ", sampling.top_k, ": give a number from 0 (all tokens) up"));
  }
  if (sampling.choice < 0) {
    return InvalidArgument(StrCat("choice ", sampling.choice, ": give a number from 0 up"));
  }
  if (sampling.max_new_tokens < 0) {
    return InvalidArgument(StrCat("max_new_tokens ", sampling.max_new_tokens, ": give a number from 0 up"));
  }
  if (sampling.top_logprobs < 0 || sampling.top_logprobs > kMaxTopLogprobs) {
    return InvalidArgument(
        StrCat("top_logprobs ", sampling.top_logprobs, ": give a number from 0 to ", kMaxTopLogprobs));
  }
  return Status::Ok();
}

}  // namespace

Status CheckRequest(const Request& request, const ModelInfo& model) {
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty: give at least one token");
  PERIGEE_RETURN_IF_ERROR(CheckSampling(request.sampling));
  PERIGEE_RETURN_IF_ERROR(
      CheckLength(static_cast<int64_t>(request.prompt.size()), request.sampling.max_new_tokens, model));
  PERIGEE_RETURN_IF_ERROR(CheckIds(request.prompt, "prompt token", model.vocab_size));
  return CheckIds(request.sampling.stop_token_ids, "stop token", model.vocab_size);
}

}  // namespace perigee::engine
