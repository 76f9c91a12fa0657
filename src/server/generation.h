#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/response_channel.h"
#include "server/serving_context.h"

namespace perigee::server {

// Everything about a request that does not depend on the form of its answer.
struct GenerationRequest {
  std::vector<std::vector<engine::TokenId>> prompts;
  std::string list_field;  // of a request with a list of prompts, so that errors say which; empty: one prompt
  std::vector<int64_t> max_new_tokens;  // per prompt
  engine::SamplingParams sampling;
  int32_t n = 1;
  AnswerOptions answer;
};

struct Usage {
  int64_t prompt_tokens = 0;  // each prompt once, whatever n is
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// Gives one endpoint's answers their form. Called on the delivery thread.
class Responder {
 public:
  virtual ~Responder() = default;
  // Streams only, once for every answer after the engine has taken the whole request.
  virtual void OnStart(ResponseChannel& channel, const Answer& answer) = 0;
  // After every delivery that changed this answer; the last one has answer.end set.
  virtual void OnDelta(ResponseChannel& channel, const Answer& answer, const AnswerDelta& delta) = 0;
  // All answers have ended, in the order of their index.
  virtual void OnEnd(ResponseChannel& channel, const std::vector<const Answer*>& answers,
                     const Usage& usage) = 0;
};

// Runs `request` on the engine and lets `responder` write the answers to `channel`: n answers for each
// prompt, index = prompt * n + choice. A refusal by the engine is sent before any stream begins; when the
// client goes away, or one answer fails, the rest is cancelled. Returns at once; any thread.
void StartGeneration(std::shared_ptr<const ServingContext> context, GenerationRequest request,
                     ResponseChannel channel, std::unique_ptr<Responder> responder);

}  // namespace perigee::server
