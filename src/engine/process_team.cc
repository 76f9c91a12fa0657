#include "engine/process_team.h"

#include <utility>

#include "base/strings.h"
#include "base/trace.h"

namespace perigee::engine {
namespace {

std::vector<std::unique_ptr<Worker>> Only(std::unique_ptr<Worker> worker) {
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::move(worker));
  return workers;
}

// The watchdog sees the step from here to its end.
class StepScope {
 public:
  StepScope(comm::ProcessRanks& ranks, const Worker& worker) : ranks_(ranks) {
    ranks_.BeginStep(&worker.work_begun());
  }
  ~StepScope() { ranks_.EndStep(); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  comm::ProcessRanks& ranks_;
};

}  // namespace

ProcessTeam::ProcessTeam(std::unique_ptr<Worker> worker, comm::ProcessRanks* ranks)
    : RankTeam(Only(std::move(worker))), ranks_(ranks), shared_(std::make_shared<Shared>()) {
  ranks_->OnFailure([shared = shared_](const Status& reason) {
    const std::lock_guard lock(shared->mutex);
    shared->lost = reason;
    shared->changed.notify_all();
  });
  thread_ = std::thread([this] { Work(); });
}

ProcessTeam::~ProcessTeam() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
  }
  thread_.join();
}

StatusOr<std::vector<SpanResult>> ProcessTeam::Run(const batch::BatchPlan& plan, const Sampler& sampler) {
  ranks_->Tell(batch::EncodePlan(plan));
  std::unique_lock lock(shared_->mutex);
  if (!shared_->lost.ok()) return shared_->lost;
  shared_->step = Step{std::make_shared<const batch::BatchPlan>(plan), &sampler};
  shared_->changed.notify_all();
  shared_->changed.wait(lock, [&] { return shared_->result.has_value() || !shared_->lost.ok(); });
  if (!shared_->result.has_value()) return shared_->lost;
  Result result = *std::move(shared_->result);
  shared_->result.reset();
  return result;
}

void ProcessTeam::Work() {
  SetTraceRank(0);
  std::unique_lock lock(shared_->mutex);
  while (true) {
    shared_->changed.wait(lock, [&] { return shared_->step.has_value() || shared_->stopping; });
    if (shared_->stopping) return;
    const Step step = *std::exchange(shared_->step, std::nullopt);
    lock.unlock();
    std::optional<Result> result;
    {
      const StepScope in_step(*ranks_, worker(0));
      result = RankTeam::Run(*step.plan, *step.sampler);
    }
    lock.lock();
    shared_->result = std::move(result);
    shared_->changed.notify_all();
  }
}

Status FollowPlans(Worker& worker, const batch::PlanLimits& limits, comm::ProcessRanks& ranks) {
  SetTraceRank(ranks.rank());
  while (const auto bytes = ranks.Receive()) {
    StatusOr<batch::BatchPlan> plan = batch::DecodePlan(*bytes, limits);
    if (!plan.ok()) {
      ranks.Fail(Unavailable(StrCat("rank ", ranks.rank(), ": ", plan.status().message())));
      break;
    }
    const StepScope in_step(ranks, worker);
    if (const auto done = worker.Run(*plan, nullptr); !done.ok()) {
      ranks.Fail(done.status());
      break;
    }
  }
  return ranks.status();
}

}  // namespace perigee::engine
