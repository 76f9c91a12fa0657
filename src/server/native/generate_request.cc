#include "server/native/generate_request.h"

#include <limits>

#include "base/strings.h"
#include "server/field_reader-inl.h"

namespace perigee::server {
namespace {

void ReadInput(FieldReader& reader, PromptFields& prompt) {
  const Json* text = reader.Find("text");
  const Json* ids = reader.Find("input_ids");
  if (text && ids) return reader.Fail("input_ids", "cannot go with text");
  if (!text && !ids) return reader.Fail("text", "is missing (or input_ids in its place)");
  ReadPrompt(reader, text ? "text" : "input_ids", prompt);
  if (text && !prompt.ids.empty())
    reader.Fail("text", "must be a string or a list of strings; ids go in input_ids");
  if (ids && !prompt.texts.empty()) reader.Fail("input_ids", "must hold token ids; text goes in text");
}

void ReadSamplingParams(FieldReader& reader, GenerationFields& generation) {
  const Json* params = reader.Find("sampling_params");
  if (!params) return;
  if (!params->is_object()) return reader.Fail("sampling_params", "must be one object, for all prompts");
  FieldReader inner = reader.Nested(*params, "sampling_params");
  ReadSampling(inner, generation);
  inner.Read("max_new_tokens", 0, std::numeric_limits<int64_t>::max(), generation.max_tokens);
  std::optional<int64_t> seed;
  inner.Read("sampling_seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), seed);
  if (seed) generation.sampling.seed = static_cast<uint64_t>(*seed);
  inner.RefuseUnknown({"stream_interval"});
  reader.Adopt(inner);
}

void ReadLogprobs(FieldReader& reader, GenerateRequest& request) {
  engine::SamplingParams& sampling = request.generation.sampling;
  reader.Read("return_logprob", sampling.logprobs);
  std::optional<int64_t> top, start;
  reader.Read("top_logprobs_num", 0, engine::kMaxTopLogprobs, top);
  reader.Read("logprob_start_len", -1, std::numeric_limits<int64_t>::max(), start);
  reader.Read("return_text_in_logprobs", request.text_in_logprobs);
  if (!sampling.logprobs) return;
  if (top) sampling.top_logprobs = static_cast<int32_t>(*top);
  if (start && *start >= 0) {
    request.logprob_start = start;
    sampling.prompt_logprobs = true;
  }
}

}  // namespace

std::optional<ApiError> ParseGenerateRequest(std::string_view body, GenerateRequest& request) {
  Json json;
  if (auto error = ParseBody(body, json)) return error;
  FieldReader reader(json);
  reader.Read("rid", request.rid);
  reader.Read("model", request.model);
  ReadInput(reader, request.prompt);
  reader.Read("allow_special_tokens", request.prompt.allow_special_tokens);
  ReadSamplingParams(reader, request.generation);
  ReadLogprobs(reader, request);
  reader.Read("stream", request.generation.stream);
  for (const char* name : {"input_embeds", "image_data", "video_data", "audio_data", "lora_path",
                           "session_params", "modalities", "token_ids_logprob", "return_hidden_states"})
    reader.RefuseUnlessEmpty(name);
  CheckAnswerCount(reader, "text", request.prompt.size(), request.generation.n);
  reader.RefuseUnknown(kHarmlessFields);
  return reader.error();
}

}  // namespace perigee::server
