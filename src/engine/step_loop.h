#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/status.h"
#include "batch/batch_plan.h"
#include "engine/deliveries.h"
#include "engine/engine.h"
#include "engine/mode_chooser.h"
#include "engine/rank_team.h"
#include "engine/sampler.h"
#include "scheduler/scheduler.h"

namespace perigee::engine {

// The engine's thread: takes requests from a queue, asks the scheduler for a step, runs it on the ranks and
// delivers. Sleeps while there is nothing to do. Scheduler, team, sampler and deliveries belong to that
// thread alone; the public functions may be called from any thread.
class StepLoop {
 public:
  // `stop_ids` end an answer unless the request ignores them. `seed` is for unseeded requests.
  // `modes` says how the team runs each step.
  StepLoop(const scheduler::SchedulerConfig& config, std::unique_ptr<RankTeam> team, ModeChooser modes,
           std::vector<TokenId> stop_ids, uint64_t seed);
  // Ends what is left with kCancelled and joins the thread.
  ~StepLoop();
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // Queues a request that was checked. Numbers ascend from 1 in the order of queueing.
  RequestId Submit(Request request, OutputCallback callback);
  void Cancel(RequestId id);
  void FlushCache(std::function<void()> done);
  EngineStats stats() const;
  // The most that each rank ever took.
  std::vector<RankMemory> memory_peak() const { return team_->memory_peak(); }
  // Not ok once the ranks have lost each other: nothing will be computed any more.
  Status health() const;

 private:
  struct Submission {
    Request request;
    OutputCallback callback;
  };
  // A new request, the wish to end one, or (with `flushed`) to forget what is cached.
  struct Command {
    RequestId id = 0;
    std::optional<Submission> submission;
    std::function<void()> flushed;
  };

  void Loop();
  // Waits for commands only when `idle`. Nothing when the loop is to end.
  std::optional<std::vector<Command>> TakeCommands(bool idle);
  void Apply(Command command);
  void ApplyCancel(RequestId id);
  void ApplySubmission(RequestId id, Submission submission);
  void Step(batch::BatchPlan plan);
  // The ranks are of no more use: everybody gets the reason, now and from now on.
  void GiveUp(const Status& reason);
  void PublishStats();

  const std::vector<TokenId> stop_ids_;
  scheduler::Scheduler scheduler_;
  Sampler sampler_;  // before the team, which may be using it to the end
  const std::unique_ptr<RankTeam> team_;
  ModeChooser modes_;
  ModeSteps steps_by_mode_;
  double run_seconds_ = 0;
  CollectiveElements collectives_;
  Deliveries deliveries_;
  uint64_t applied_ = 0;  // submissions that reached the scheduler

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<Command> commands_;
  bool stopping_ = false;
  Status health_;
  RequestId last_id_ = 0;           // as many requests were submitted
  EngineStats published_;           // as of the last step
  uint64_t published_applied_ = 0;  // submissions that published_ knows of

  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace perigee::engine
