#include "engine/mode_chooser.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/strings.h"

namespace perigee::engine {
namespace {

using batch::StepMode;

std::vector<batch::SeqSpan> SpansOf(const batch::BatchPlan& plan) {
  std::vector<batch::SeqSpan> spans;
  int64_t row = 0;
  for (const batch::PlannedSpan& span : plan.spans) {
    const auto rows = static_cast<int64_t>(span.tokens.size());
    spans.push_back({.seq = static_cast<int32_t>(spans.size()),
                     .q_begin = row,
                     .q_len = rows,
                     .kv_len = span.prefix + rows});
    row += rows;
  }
  return spans;
}

std::string Milliseconds(const parallel::ModeCost& cost) {
  char text[96];
  std::snprintf(text, sizeof text, "%.3f ms (links %.3f, calls %.3f, operations %.3f)", cost.total() * 1e3,
                cost.link * 1e3, cost.latency * 1e3, cost.compute * 1e3);
  return StrCat(batch::StepModeName(cost.mode), " ", text);
}

PlannedMode& StatsOf(StepMode planned, PlannerStats& stats) {
  if (planned == StepMode::kTp) return stats.tp;
  return planned == StepMode::kHead ? stats.head : stats.state;
}

}  // namespace

ModeChooser::ModeChooser(parallel::ModelShape model, const parallel::Rates& rates,
                         const parallel::RankShape& ranks)
    : planner_(Planner{std::move(model), rates, ranks}) {}

StepMode ModeChooser::Choose(const batch::BatchPlan& plan) {
  if (plan.phase == batch::Phase::kDecode) return StepMode::kDecode;
  if (!planner_) return fixed_;
  const std::vector<batch::SeqSpan> spans = SpansOf(plan);
  const auto& [model, rates, ranks] = *planner_;
  const parallel::ModeCost choice = parallel::ChooseMode(model, rates, ranks, spans);
  std::vector<std::string> others;
  for (const StepMode mode : parallel::kPlannedModes) {
    const parallel::ModeCost cost = parallel::CostOf(mode, model, rates, ranks, spans);
    PlannedMode& counted = StatsOf(mode, stats_);
    counted.estimated_seconds += cost.total();
    if (mode == choice.mode) {
      ++counted.chosen;
    } else {
      others.push_back(Milliseconds(cost));
    }
  }
  LogDebug(StrCat("prefill of ", plan.NumRows(), " rows in ", spans.size(), " spans: ", Milliseconds(choice),
                  " is cheapest; ", StrJoin(others, "; ")));
  return choice.mode;
}

}  // namespace perigee::engine
