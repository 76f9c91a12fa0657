#include "engine/deliveries.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/strings.h"

namespace perigee::engine {
namespace {

FinishReason ReasonOf(scheduler::Finish finish) {
  switch (finish) {
    case scheduler::Finish::kNone:
      return FinishReason::kNone;
    case scheduler::Finish::kStop:
      return FinishReason::kStop;
    case scheduler::Finish::kLength:
      return FinishReason::kLength;
    case scheduler::Finish::kFailed:
      return FinishReason::kError;
  }
  return FinishReason::kError;
}

}  // namespace

void Deliveries::Open(RequestId id, const Request& request, OutputCallback callback) {
  Pending pending{.callback = std::move(callback),
                  .prompt_tokens = static_cast<int64_t>(request.prompt.size())};
  if (request.sampling.prompt_logprobs) pending.prompt_logprobs.resize(request.prompt.size());
  PERIGEE_CHECK(pending_.emplace(id, std::move(pending)).second);
}

void Deliveries::Step(const batch::PlannedSpan& span, const scheduler::SequenceUpdate& update,
                      SpanResult result) {
  const auto entry = pending_.find(update.id);
  PERIGEE_CHECK(entry != pending_.end());
  Pending& pending = entry->second;
  pending.cached_tokens = update.cached_tokens;
  pending.reused_answer = update.reused_answer;
  // Row i tells of the token after it. A chunk that a preemption repeats writes the same values again.
  const auto first = pending.prompt_logprobs.begin() + (result.target_logprobs.empty() ? 0 : span.prefix + 1);
  std::copy(result.target_logprobs.begin(), result.target_logprobs.end(), first);
  if (!update.token && update.finish == scheduler::Finish::kNone) return;

  if (update.token) ++pending.completion_tokens;
  Output output = StartOutput(pending);
  if (update.finish == scheduler::Finish::kFailed) {
    output.finish = FinishReason::kError;
    output.status = InternalError(StrCat("the model gave logits that are not finite after ",
                                         span.prefix + static_cast<int64_t>(span.tokens.size()), " tokens"));
    Finish(entry, std::move(output));
    return;
  }
  output.prompt_logprobs = std::exchange(pending.prompt_logprobs, {});
  output.finish = ReasonOf(update.finish);
  if (output.finish == FinishReason::kStop) output.stop_token = update.token;
  if (update.token) output.tokens.push_back(std::move(result.token));
  if (output.finish == FinishReason::kNone) {
    pending.callback(std::move(output));
  } else {
    Finish(entry, std::move(output));
  }
}

void Deliveries::End(RequestId id, FinishReason finish, Status status) {
  const auto entry = pending_.find(id);
  if (entry == pending_.end()) return;
  Output output = StartOutput(entry->second);
  output.finish = finish;
  output.status = std::move(status);
  Finish(entry, std::move(output));
}

std::vector<RequestId> Deliveries::OpenIds() const {
  std::vector<RequestId> ids;
  for (const auto& [id, pending] : pending_) ids.push_back(id);
  return ids;
}

void Deliveries::EndAll(FinishReason finish) {
  while (!pending_.empty()) End(pending_.begin()->first, finish, Status::Ok());
}

Output Deliveries::StartOutput(const Pending& request) {
  Output output;
  output.prompt_tokens = request.prompt_tokens;
  output.completion_tokens = request.completion_tokens;
  output.cached_tokens = request.cached_tokens;
  output.reused_answer = request.reused_answer;
  return output;
}

void Deliveries::Finish(std::map<RequestId, Pending>::iterator entry, Output output) {
  const OutputCallback callback = std::move(entry->second.callback);
  pending_.erase(entry);
  callback(std::move(output));
}

}  // namespace perigee::engine
