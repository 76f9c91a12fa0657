#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/status.h"
#include "batch/batch_plan.h"
#include "batch/plan_bytes.h"
#include "comm/process_ranks.h"
#include "engine/rank_team.h"
#include "engine/worker.h"

namespace perigee::engine {

// Ranks that are processes, seen from rank 0. Its worker runs on a thread of its own, so that Run returns as
// soon as a rank is lost, however long the worker's present kernel takes: its requests are not to wait for
// it.
class ProcessTeam final : public RankTeam {
 public:
  // ranks outlives the team.
  ProcessTeam(std::unique_ptr<Worker> worker, comm::ProcessRanks* ranks);
  // Waits for the worker's present step.
  ~ProcessTeam() override;

  StatusOr<std::vector<SpanResult>> Run(const batch::BatchPlan& plan, const Sampler& sampler) override;

 private:
  using Result = StatusOr<std::vector<SpanResult>>;
  struct Step {
    std::shared_ptr<const batch::BatchPlan> plan;
    const Sampler* sampler = nullptr;
  };
  // Between the two threads and the one that reports the loss.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Step> step;
    std::optional<Result> result;
    Status lost;
    bool stopping = false;
  };

  void Work();

  comm::ProcessRanks* const ranks_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// What every other process does: runs the plans that rank 0 tells until it says goodbye (ok) or the ranks are
// lost (why).
Status FollowPlans(Worker& worker, const batch::PlanLimits& limits, comm::ProcessRanks& ranks);

}  // namespace perigee::engine
