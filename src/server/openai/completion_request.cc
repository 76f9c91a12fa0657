#include "server/openai/completion_request.h"

#include <limits>

#include "server/field_reader-inl.h"

namespace perigee::server {

std::optional<ApiError> ParseCompletionRequest(std::string_view body, CompletionRequest& request) {
  Json json;
  if (auto error = ParseBody(body, json)) return error;
  FieldReader reader(json);
  reader.Read("model", request.model);
  ReadPrompt(reader, "prompt", request.prompt);
  if (request.prompt.size() == 0) reader.Fail("prompt", "is missing");
  reader.Read("allow_special_tokens", request.prompt.allow_special_tokens);

  GenerationFields& generation = request.generation;
  ReadSampling(reader, generation);
  reader.Read("max_tokens", 0, std::numeric_limits<int64_t>::max(), generation.max_tokens);
  std::optional<int64_t> logprobs, best_of;
  reader.Read("logprobs", 0, engine::kMaxTopLogprobs, logprobs);
  if (logprobs) {
    generation.sampling.logprobs = true;
    generation.sampling.top_logprobs = static_cast<int32_t>(*logprobs);
  }
  reader.Read("echo", request.echo);
  generation.sampling.prompt_logprobs = request.echo && generation.sampling.logprobs;
  // Choosing among more answers than are returned is not offered; fewer makes no sense.
  reader.Read("best_of", 1, kMaxChoices, best_of);
  if (best_of && *best_of != generation.n) reader.Fail("best_of", "is not supported unless it equals n");
  for (const char* name : {"suffix", "response_format"}) reader.RefuseUnlessEmpty(name);
  CheckAnswerCount(reader, "prompt", request.prompt.size(), generation.n);
  reader.Read("stream", generation.stream);
  ReadStreamOptions(reader, request.include_usage);
  reader.RefuseUnknown(kHarmlessFields);
  return reader.error();
}

}  // namespace perigee::server
