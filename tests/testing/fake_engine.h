#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace perigee::test {

// What a FakeEngine delivers for one request.
struct Script {
  std::vector<engine::TokenId> tokens;
  size_t tokens_per_delivery = 1;
  // How it ends once the tokens are out. kNone: it goes on for ever, repeating the last token.
  engine::FinishReason finish = engine::FinishReason::kStop;
  std::optional<engine::TokenId> stop_token;  // delivered as the last token of a kStop
  Status error;                               // of a kError
  bool stall = false;                         // no delivery and no step until it is cancelled
  int64_t cached_tokens = 0;
  float logprob = -0.5f;  // of every token; alternatives get 1 less each
};

// An engine without a model: the script decides what a request gets. One loop thread serves all requests in
// turn, one delivery a step. Thread-safe.
class FakeEngine : public engine::Engine {
 public:
  using Scripter = std::function<Script(const engine::Request&)>;

  explicit FakeEngine(Scripter scripter, engine::ModelInfo info = {});
  ~FakeEngine() override;

  StatusOr<engine::RequestId> Submit(engine::Request request, engine::OutputCallback callback) override;
  void Cancel(engine::RequestId id) override;
  void FlushCache(std::function<void()> done) override;
  const engine::ModelInfo& model_info() const override { return info_; }
  engine::EngineStats stats() const override;
  std::vector<engine::RankMemory> memory_peak() const override { return info_.memory.ranks; }

  // Pause between steps.
  void set_step_time(std::chrono::microseconds t);
  // Refuses every further request.
  void set_refusal(Status refusal);
  // What stats() say from now on.
  void set_failure(std::string failure);
  // While held, Submit does not return: its caller is kept busy.
  void HoldSubmissions(bool hold);
  // Waits until a Submit is held; false after `limit`.
  bool WaitHeld(std::chrono::milliseconds limit = std::chrono::seconds(10)) const;

  std::vector<engine::Request> requests() const;
  engine::Request last_request() const;
  int64_t cancelled() const;
  int64_t flushes() const;
  // Waits until no request is left; false after `limit`.
  bool WaitIdle(std::chrono::milliseconds limit = std::chrono::seconds(10)) const;

 private:
  struct Run {
    engine::Request request;
    engine::OutputCallback callback;
    Script script;
    int64_t done = 0;
    bool cancelled = false;
  };

  void Loop();
  engine::Output Next(Run& run) const;
  engine::TokenOutput Token(const Run& run, engine::TokenId id) const;

  const engine::ModelInfo info_;
  const Scripter scripter_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<engine::RequestId, Run> runs_;
  std::vector<engine::Request> requests_;
  engine::RequestId next_id_ = 1;
  Status refusal_;
  std::string failure_;
  std::chrono::microseconds step_time_{0};
  uint64_t steps_ = 0;
  int64_t cancelled_ = 0;
  int64_t flushes_ = 0;
  bool holding_ = false;
  int held_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace perigee::test
