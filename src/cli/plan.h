#pragma once

#include <string>

#include "base/status.h"
#include "engine/plan_report.h"

namespace perigee::cli {

// The report as one JSON object: transitions, elements_per_token, flops_per_rank, choice, memory.
std::string PlanJson(const engine::PlanReport& report);

// perigee plan: prints what a model costs on given ranks, as tables or as JSON.
Status RunPlan(const engine::PlanRequest& request, bool json);

}  // namespace perigee::cli
