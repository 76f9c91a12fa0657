#pragma once

#include <optional>

#include "batch/batch_plan.h"
#include "batch/step_mode.h"
#include "engine/engine.h"
#include "parallel/planner.h"

namespace perigee::engine {

// Which mode a step runs in: answers in decode, prompts in a fixed mode or in the one that the planner finds
// cheapest for the step.
class ModeChooser {
 public:
  // Converts on purpose: one mode for every prompt.
  ModeChooser(batch::StepMode fixed) : fixed_(fixed) {}
  ModeChooser(parallel::ModelShape model, const parallel::Rates& rates, const parallel::RankShape& ranks);

  // Counts what it plans; a planned choice and its reason are logged at debug level. One thread.
  batch::StepMode Choose(const batch::BatchPlan& plan);
  const PlannerStats& stats() const { return stats_; }

 private:
  struct Planner {
    parallel::ModelShape model;
    parallel::Rates rates;
    parallel::RankShape ranks;
  };

  batch::StepMode fixed_ = batch::StepMode::kTp;
  std::optional<Planner> planner_;
  PlannerStats stats_;
};

}  // namespace perigee::engine
