#include "engine/parallel_options.h"

#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "comm/process_grid.h"
#include "kernels/gemm/gemm.h"

namespace perigee::engine {
namespace {

Status CheckChoice(std::string_view flag, const std::string& value,
                   std::initializer_list<const char*> accepted) {
  if (value.empty()) return Status::Ok();
  std::vector<std::string> names(accepted.begin(), accepted.end());
  for (const std::string& a : names) {
    if (a == value) return Status::Ok();
  }
  return UsageError(StrCat(flag, " ", Quoted(value), ": accepted: ", StrJoin(names, ", ")));
}

Status CheckStrategy(const ParallelOptions& o) {
  const std::string names = StrJoin(parallel::CpStrategyNames(), ", ");
  if (o.enable_prefill_cp && o.cp_strategy.empty()) {
    return UsageError(StrCat("--enable-prefill-cp needs --cp-strategy; accepted: ", names));
  }
  if (o.attn_cp > 1 && !o.enable_prefill_cp) {
    return UsageError(StrCat("--attn-cp-size ", o.attn_cp,
                             " needs --enable-prefill-cp (with --cp-strategy; accepted: ", names,
                             "), or --attn-cp-size 1"));
  }
  return Status::Ok();
}

batch::StepMode PrefillMode(const ParallelOptions& o) {
  if (o.attn_cp == 1) return batch::StepMode::kTp;
  if (o.cp_layout == "replicated") return batch::StepMode::kReplicated;
  if (o.cp_kda_mode == "tp") return batch::StepMode::kTp;
  return o.cp_kda_mode == "state" ? batch::StepMode::kState : batch::StepMode::kHead;
}

// Why the ranks' results cannot be those of one rank; empty when they can.
std::string WhyNotDeterministic(const ParallelOptions& o) {
  if (kernels::kSumParts % o.tp != 0) {
    return StrCat("--tp ", o.tp, ": sums are taken in ", kernels::kSumParts,
                  " parts, which only 1, 2, 4 or 8 ranks can share");
  }
  if (o.ep != 1 && o.ep != o.tp) {
    return StrCat("--ep-size ", o.ep, ": accepted with --deterministic on: 1 or ", o.tp);
  }
  return "";
}

bool IsAuto(const std::string& choice) {
  return choice.empty() || choice == "auto";
}

// Whether the planner chooses: not while results must be those of one rank.
bool IsPlanned(const ParallelOptions& o) {
  return o.attn_cp > 1 && o.cp_layout != "replicated" && IsAuto(o.cp_kda_mode) &&
         !o.deterministic.value_or(WhyNotDeterministic(o).empty());
}

// Flags of rates that were given.
std::vector<std::string> RateFlags(const ParallelOptions& o) {
  std::vector<std::string> given;
  if (!o.plan_profile.empty()) given.emplace_back("--plan-profile");
  if (o.link_gbps) given.emplace_back("--link-gbps");
  if (o.latency_us) given.emplace_back("--latency-us");
  if (o.tflops) given.emplace_back("--tflops");
  return given;
}

// Flags that were given and change nothing.
void AddNotices(const ParallelOptions& o, std::vector<std::string>& notices) {
  std::vector<std::string> idle;
  if (o.attn_cp == 1) {
    if (o.enable_prefill_cp) idle.push_back("--enable-prefill-cp");
    if (!o.cp_strategy.empty()) idle.push_back("--cp-strategy");
    if (!o.cp_layout.empty()) idle.push_back("--cp-layout");
    if (!o.cp_kda_mode.empty()) idle.push_back("--cp-kda-mode");
    if (!idle.empty()) notices.push_back(StrCat("no effect with --attn-cp-size 1: ", StrJoin(idle, ", ")));
  } else if (o.cp_layout == "replicated" && !IsAuto(o.cp_kda_mode)) {
    notices.push_back(StrCat("--cp-kda-mode ", o.cp_kda_mode, " has no effect with --cp-layout replicated"));
  }
  if (const std::vector<std::string> rates = RateFlags(o); !rates.empty() && !IsPlanned(o)) {
    notices.push_back(StrCat(StrJoin(rates, ", "),
                             ": steps are chosen by rates only with several CP ranks, --cp-kda-mode auto and "
                             "--deterministic off"));
  }
}

Status ResolveDeterminism(const ParallelOptions& o, ParallelPlan& plan) {
  const std::string why_not = WhyNotDeterministic(o);
  plan.deterministic = o.deterministic.value_or(why_not.empty());
  if (plan.deterministic && !why_not.empty()) {
    return UsageError(StrCat("--deterministic on cannot hold with ", why_not));
  }
  if (!why_not.empty() && !o.deterministic) {
    plan.notices.push_back(StrCat("--deterministic is off: ", why_not));
  }
  if (plan.deterministic && o.cp_attn_form == "absorbed") {
    return UsageError(
        "--cp-attn-form absorbed: with --deterministic on prompt rows are materialised and generated rows "
        "absorbed; "
        "accepted: auto, materialised, or --deterministic off");
  }
  plan.policy.attention_form = parallel::AttentionForm::kMaterialised;
  if (o.cp_attn_form == "absorbed") plan.policy.attention_form = parallel::AttentionForm::kAbsorbed;
  const bool by_cost = IsAuto(o.cp_attn_form);
  if (!plan.deterministic && by_cost) plan.policy.attention_form = parallel::AttentionForm::kByCost;
  return Status::Ok();
}

}  // namespace

StatusOr<ParallelPlan> ResolveParallel(const ParallelOptions& o) {
  PERIGEE_RETURN_IF_ERROR(comm::CheckGrid(o.tp, o.attn_cp, o.ep));
  PERIGEE_RETURN_IF_ERROR(CheckChoice("--cp-layout", o.cp_layout, {"sharded", "replicated"}));
  PERIGEE_RETURN_IF_ERROR(CheckChoice("--cp-kda-mode", o.cp_kda_mode, {"auto", "head", "state", "tp"}));
  PERIGEE_RETURN_IF_ERROR(
      CheckChoice("--cp-attn-form", o.cp_attn_form, {"auto", "absorbed", "materialised"}));
  PERIGEE_RETURN_IF_ERROR(CheckStrategy(o));
  if (o.cp_layout == "replicated" && o.cp_kda_mode == "state") {
    return UsageError(
        "--cp-layout replicated with --cp-kda-mode state: KDA keeps to its rows only where the residual "
        "does; "
        "accepted: --cp-layout sharded, or --cp-kda-mode auto, head or tp");
  }
  ParallelPlan plan;
  if (!o.cp_strategy.empty()) {
    StatusOr<parallel::CpStrategy> strategy = parallel::FindCpStrategy(o.cp_strategy);
    if (!strategy.ok()) return UsageError(StrCat("--cp-strategy: ", strategy.status().message()));
    plan.policy.strategy = *strategy;
  }
  AddNotices(o, plan.notices);
  plan.prefill_mode = PrefillMode(o);
  plan.planned = IsPlanned(o);
  PERIGEE_RETURN_IF_ERROR(ResolveDeterminism(o, plan));
  if (plan.deterministic && plan.prefill_mode == batch::StepMode::kState) {
    plan.notices.push_back(
        "--cp-kda-mode state: results repeat, but are within 5e-4 of one rank's log-probabilities, not equal "
        "to the bit");
  }
  return plan;
}

Status CheckModelCut(const ParallelOptions& o, const model::ModelSizes& sizes) {
  const auto divides = [&](std::string_view what, int64_t count) {
    if (count % o.tp == 0) return Status::Ok();
    return UsageError(StrCat("--tp ", o.tp, " does not divide the model's ", count, " ", what,
                             "; accepted: a divisor of ", count));
  };
  PERIGEE_RETURN_IF_ERROR(divides("KDA heads", sizes.kda_heads));
  PERIGEE_RETURN_IF_ERROR(divides("attention heads", sizes.mla_heads));
  if (sizes.experts % o.ep != 0) {
    return UsageError(StrCat("--ep-size ", o.ep, " does not divide the model's ", sizes.experts,
                             " experts; accepted: a divisor of ", sizes.experts));
  }
  if (sizes.vocab_size < o.tp) {
    return UsageError(StrCat("--tp ", o.tp, ": the vocabulary has only ", sizes.vocab_size,
                             " rows; accepted: a number that divides the heads and is at most that"));
  }
  return Status::Ok();
}

parallel::Shard ShardOfRank(const ParallelOptions& o, int rank) {
  parallel::Shard shard = parallel::ShardOf({.tp = o.tp, .attn_cp = o.attn_cp, .ep = o.ep, .rank = rank});
  shard.holds_kda = PrefillMode(o) == batch::StepMode::kState || IsPlanned(o);
  return shard;
}

}  // namespace perigee::engine
