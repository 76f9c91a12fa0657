#include "server/health_probes.h"

#include <utility>
#include <vector>

#include "base/strings.h"

namespace perigee::server {

void HealthProbes::Start(const ServingContext& context, std::shared_ptr<ResponseWriter> writer,
                         Clock::time_point now) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_;
    waiting_[number] = {.writer = std::move(writer), .deadline = now + limit_};
  }
  engine::Request request{.prompt = {0}};
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = 1;
  const auto id = context.engine->Submit(
      std::move(request),
      [self = shared_from_this(), number](const engine::Output& output) { self->OnOutput(number, output); });
  if (!id.ok()) {
    if (const auto taken = Take(number)) taken->Send(ErrorResponse(FromStatus(id.status())));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto probe = waiting_.find(number); probe != waiting_.end()) {
      probe->second.request = *id;
      return;
    }
  }
  // Answered meanwhile: by its token, or because its time was over; then nobody else takes the request back.
  context.engine->Cancel(*id);
}

void HealthProbes::OnOutput(uint64_t number, const engine::Output& output) {
  if (output.finish == engine::FinishReason::kNone) return;
  const std::shared_ptr<ResponseWriter> writer = Take(number);
  if (writer == nullptr) return;
  switch (output.finish) {
    case engine::FinishReason::kError:
      return writer->Send(ErrorResponse(FromStatus(output.status)));
    case engine::FinishReason::kCancelled:
      return writer->Send(ErrorResponse({.status = 503, .message = "the server is shutting down"}));
    default:
      return writer->Send({.status = 200, .body = R"({"status":"ok"})"});
  }
}

void HealthProbes::Expire(engine::Engine& engine, Clock::time_point now) {
  std::vector<Probe> over;
  {
    const std::lock_guard lock(mutex_);
    for (auto probe = waiting_.begin(); probe != waiting_.end();) {
      if (probe->second.deadline > now) {
        ++probe;
        continue;
      }
      over.push_back(std::move(probe->second));
      probe = waiting_.erase(probe);
    }
  }
  for (const Probe& probe : over) {
    if (probe.request != 0) engine.Cancel(probe.request);
    probe.writer->Send(
        ErrorResponse({.status = 503, .message = StrCat("no token came within ", limit_.count(), " ms")}));
  }
}

std::shared_ptr<ResponseWriter> HealthProbes::Take(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto probe = waiting_.find(number);
  if (probe == waiting_.end()) return nullptr;
  std::shared_ptr<ResponseWriter> writer = std::move(probe->second.writer);
  waiting_.erase(probe);
  return writer;
}

}  // namespace perigee::server
