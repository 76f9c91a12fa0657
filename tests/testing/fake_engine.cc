#include "testing/fake_engine.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace perigee::test {

using engine::FinishReason;

FakeEngine::FakeEngine(Scripter scripter, engine::ModelInfo info)
    : info_(std::move(info)), scripter_(std::move(scripter)), thread_([this] { Loop(); }) {}

FakeEngine::~FakeEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    holding_ = false;
    for (auto& [id, run] : runs_) run.cancelled = true;
  }
  changed_.notify_all();
  thread_.join();
}

StatusOr<engine::RequestId> FakeEngine::Submit(engine::Request request, engine::OutputCallback callback) {
  std::unique_lock lock(mutex_);
  if (holding_) {
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !holding_; });
    --held_;
  }
  if (!refusal_.ok()) return refusal_;
  for (engine::TokenId id : request.prompt) {
    if (id < 0 || id >= info_.vocab_size)
      return InvalidArgument(StrCat("token id ", id, " is outside [0, ", info_.vocab_size, ")"));
  }
  requests_.push_back(request);
  engine::RequestId id = next_id_++;
  Script script = scripter_(request);
  runs_.emplace(id, Run{std::move(request), std::move(callback), std::move(script)});
  lock.unlock();
  changed_.notify_all();
  return id;
}

void FakeEngine::Cancel(engine::RequestId id) {
  {
    std::lock_guard lock(mutex_);
    auto it = runs_.find(id);
    if (it == runs_.end()) return;
    if (!std::exchange(it->second.cancelled, true)) ++cancelled_;
  }
  changed_.notify_all();
}

void FakeEngine::FlushCache(std::function<void()> done) {
  {
    std::lock_guard lock(mutex_);
    ++flushes_;
  }
  done();
}

int64_t FakeEngine::flushes() const {
  std::lock_guard lock(mutex_);
  return flushes_;
}

engine::EngineStats FakeEngine::stats() const {
  std::lock_guard lock(mutex_);
  return {.running = static_cast<int64_t>(runs_.size()), .steps = steps_, .failure = failure_};
}

void FakeEngine::set_failure(std::string failure) {
  std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

void FakeEngine::set_step_time(std::chrono::microseconds t) {
  std::lock_guard lock(mutex_);
  step_time_ = t;
}

void FakeEngine::set_refusal(Status refusal) {
  std::lock_guard lock(mutex_);
  refusal_ = std::move(refusal);
}

void FakeEngine::HoldSubmissions(bool hold) {
  {
    std::lock_guard lock(mutex_);
    holding_ = hold;
  }
  changed_.notify_all();
}

bool FakeEngine::WaitHeld(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return held_ > 0; });
}

std::vector<engine::Request> FakeEngine::requests() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

engine::Request FakeEngine::last_request() const {
  std::lock_guard lock(mutex_);
  return requests_.empty() ? engine::Request{} : requests_.back();
}

int64_t FakeEngine::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool FakeEngine::WaitIdle(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return runs_.empty(); });
}

engine::TokenOutput FakeEngine::Token(const Run& run, engine::TokenId id) const {
  engine::TokenOutput token{.id = id};
  if (run.request.sampling.logprobs) token.logprob = run.script.logprob;
  for (int32_t i = 0; i < run.request.sampling.top_logprobs; ++i)
    token.top.push_back({id + i, run.script.logprob - static_cast<float>(i)});
  return token;
}

engine::Output FakeEngine::Next(Run& run) const {
  const Script& script = run.script;
  engine::Output out;
  out.prompt_tokens = static_cast<int64_t>(run.request.prompt.size());
  out.cached_tokens = script.cached_tokens;
  if (run.done == 0 && run.request.sampling.prompt_logprobs) {
    for (size_t i = 0; i < run.request.prompt.size(); ++i)
      out.prompt_logprobs.push_back(i == 0 ? std::nullopt : std::optional(-static_cast<float>(i)));
  }
  const int64_t size = static_cast<int64_t>(script.tokens.size());
  const int64_t limit = run.request.sampling.max_new_tokens;
  for (size_t i = 0; i < script.tokens_per_delivery && run.done < limit; ++i) {
    if (run.done >= size && script.finish != FinishReason::kNone) break;
    out.tokens.push_back(Token(run, script.tokens[static_cast<size_t>(std::min(run.done, size - 1))]));
    ++run.done;
  }
  if (run.cancelled) {
    out.finish = FinishReason::kCancelled;
  } else if (run.done >= size && script.finish == FinishReason::kError) {
    out.finish = FinishReason::kError;
    out.status = script.error;
  } else if (run.done >= size && script.finish == FinishReason::kStop &&
             (run.done < limit || !script.stop_token)) {
    out.finish = FinishReason::kStop;
    out.stop_token = script.stop_token;
    if (script.stop_token) {
      out.tokens.push_back(Token(run, *script.stop_token));
      ++run.done;
    }
  } else if (run.done >= limit) {
    out.finish = FinishReason::kLength;
  } else if (run.done >= size && script.finish != FinishReason::kNone) {
    out.finish = script.finish;
  }
  out.completion_tokens = run.done;
  return out;
}

void FakeEngine::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stopping_ || std::any_of(runs_.begin(), runs_.end(), [](const auto& entry) {
               return !entry.second.script.stall || entry.second.cancelled;
             });
    });
    if (stopping_ && runs_.empty()) return;
    if (step_time_.count() > 0) {
      auto pause = step_time_;
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
    }
    ++steps_;
    std::vector<std::pair<engine::OutputCallback, engine::Output>> deliveries;
    for (auto it = runs_.begin(); it != runs_.end();) {
      Run& run = it->second;
      if (run.script.stall && !run.cancelled) {
        ++it;
        continue;
      }
      engine::Output output = Next(run);
      bool last = output.finish != FinishReason::kNone;
      deliveries.emplace_back(run.callback, std::move(output));
      it = last ? runs_.erase(it) : std::next(it);
    }
    lock.unlock();
    for (auto& [callback, output] : deliveries) callback(std::move(output));
    deliveries.clear();
    changed_.notify_all();
    lock.lock();
  }
}

}  // namespace perigee::test
