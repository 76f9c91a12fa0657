#include "engine/plan_report.h"

#include <utility>

#include "base/strings.h"
#include "engine/engine_config.h"

namespace perigee::engine {
namespace {

using batch::StepMode;
using model::KimiLinearConfig;
using parallel::AttentionForm;

StatusOr<KimiLinearConfig> ReadConfig(const PlanRequest& request) {
  if (request.shape.empty()) return model::ReadKimiLinearConfig(request.model_path);
  StatusOr<KimiLinearConfig> config = model::NamedShape(request.shape);
  if (!config.ok()) return UsageError(StrCat("--shape: ", config.status().message()));
  return config;
}

Status CheckRequest(const PlanRequest& request, const KimiLinearConfig& c) {
  PERIGEE_RETURN_IF_ERROR(
      CheckModelCut(request.parallel, {.vocab_size = c.vocab_size,
                                       .kda_heads = c.NumKdaLayers() > 0 ? c.kda_num_heads : 0,
                                       .mla_heads = c.NumMlaLayers() > 0 ? c.num_attention_heads : 0,
                                       .experts = c.NumMoeLayers() > 0 ? c.num_experts : 0}));
  if (request.prompt < 1 || request.prompt > c.model_max_length) {
    return UsageError(StrCat("--prompt ", request.prompt, ": accepted: 1 to ", c.model_max_length,
                             ", the model's own maximum"));
  }
  return Status::Ok();
}

std::string FormName(AttentionForm form) {
  switch (form) {
    case AttentionForm::kMaterialised:
      return "materialised";
    case AttentionForm::kAbsorbed:
      return "absorbed";
    case AttentionForm::kByCost:
      return "by_cost";
  }
  return "?";
}

std::string WhyMode(const ParallelOptions& o, StepMode mode) {
  if (o.tp == 1) return "--tp is 1, so nothing is split";
  if (o.attn_cp == 1) return "--attn-cp-size is 1, so rows are not split, only heads and widths";
  if (mode == StepMode::kReplicated) {
    return "--cp-layout replicated asks for the baseline, which keeps all rows on every rank but in MLA";
  }
  if (mode == StepMode::kTp) return "--cp-kda-mode tp asks for rows that are not split";
  return StrCat("--attn-cp-size ", o.attn_cp, " with --cp-layout sharded",
                o.cp_layout.empty() ? " (the default)" : "", " and --cp-kda-mode ",
                o.cp_kda_mode == "head" ? "head" : "auto", o.cp_kda_mode.empty() ? " (the default)" : "",
                " keeps each rank's own rows and splits KDA by heads");
}

std::string WhyForm(const ParallelOptions& o, const ParallelPlan& plan) {
  if (!o.cp_attn_form.empty() && o.cp_attn_form != "auto") {
    return StrCat("--cp-attn-form asks for ", o.cp_attn_form, " attention");
  }
  if (plan.deterministic) return "prompts are always materialised while --deterministic is on";
  return "each step takes the attention form of fewer operations while --deterministic is off";
}

PlanElements ElementsOf(StepMode mode, const ParallelOptions& o, const KimiLinearConfig& config) {
  const parallel::LayoutPlan plan = parallel::MakeLayoutPlan(mode, AttentionKinds(config), o.tp, o.attn_cp);
  return CountElements(plan, config, o.tp, o.attn_cp);
}

PlanChoice Choose(const ParallelOptions& o, const ParallelPlan& plan, const KimiLinearConfig& config) {
  const bool splits_rows = o.attn_cp > 1 && plan.prefill_mode != StepMode::kTp;
  PlanChoice choice{.mode = std::string(batch::StepModeName(plan.prefill_mode)),
                    .strategy = splits_rows ? o.cp_strategy : "none",
                    .attention_form = FormName(plan.policy.attention_form),
                    .chunk = DefaultChunk(o.attn_cp),
                    .deterministic = plan.deterministic,
                    .why = StrCat(WhyMode(o, plan.prefill_mode), "; ", WhyForm(o, plan), "."),
                    .alternatives = {}};
  if (o.attn_cp == 1) return choice;
  for (const auto& [mode, flags] : {std::pair(StepMode::kHead, "--cp-layout sharded --cp-kda-mode head"),
                                    std::pair(StepMode::kTp, "--cp-layout sharded --cp-kda-mode tp"),
                                    std::pair(StepMode::kReplicated, "--cp-layout replicated")}) {
    if (mode == plan.prefill_mode) continue;
    choice.alternatives.push_back(
        {std::string(batch::StepModeName(mode)), flags, ElementsOf(mode, o, config)});
  }
  return choice;
}

}  // namespace

StatusOr<PlanReport> MakePlan(const PlanRequest& request) {
  const ParallelOptions& o = request.parallel;
  PERIGEE_ASSIGN_OR_RETURN(const ParallelPlan plan, ResolveParallel(o));
  PERIGEE_ASSIGN_OR_RETURN(const KimiLinearConfig config, ReadConfig(request));
  PERIGEE_RETURN_IF_ERROR(CheckRequest(request, config));

  const std::vector<parallel::BlockKind> kinds = AttentionKinds(config);
  PlanReport report;
  report.model = request.shape.empty() ? request.model_path : request.shape;
  report.prompt = request.prompt;
  report.tp = o.tp;
  report.attn_cp = o.attn_cp;
  report.ep = o.ep;
  report.unit = config.hidden_size;
  report.notices = plan.notices;
  report.prefill =
      TransitionTable(parallel::MakeLayoutPlan(plan.prefill_mode, kinds, o.tp, o.attn_cp), o.attn_cp);
  report.decode =
      TransitionTable(parallel::MakeLayoutPlan(StepMode::kDecode, kinds, o.tp, o.attn_cp), o.attn_cp);
  report.elements = ElementsOf(plan.prefill_mode, o, config);
  report.choice = Choose(o, plan, config);
  report.flops = CountFlops(config, o, plan, request.prompt, report.choice.chunk);
  std::vector<double> totals, pairs;
  for (const RankFlops& f : report.flops) {
    totals.push_back(f.total());
    pairs.push_back(f.pairs);
  }
  report.balance = Balance(totals);
  report.pairs_balance = Balance(pairs);
  report.memory = CountMemory(config, o);
  report.embedding_bytes = EmbeddingBytes(config);
  return report;
}

}  // namespace perigee::engine
