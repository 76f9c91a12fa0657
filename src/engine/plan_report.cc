#include "engine/plan_report.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/strings.h"
#include "engine/engine_config.h"
#include "engine/memory_budget.h"
#include "engine/plan_rates.h"
#include "model/checkpoint_check.h"
#include "model/kimi_linear/footprint.h"
#include "model/kimi_linear/model.h"
#include "tensor/safetensors.h"

namespace perigee::engine {
namespace {

using batch::StepMode;
using batch::StepModeName;
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

std::string WhyMode(const ParallelOptions& o, const ParallelPlan& plan) {
  if (o.tp == 1) return "--tp is 1, so nothing is split";
  if (o.attn_cp == 1) return "--attn-cp-size is 1, so rows are not split, only heads and widths";
  if (plan.planned) {
    return StrCat("--cp-kda-mode auto with --deterministic off takes the cheapest mode for each step, here ",
                  StepModeName(plan.prefill_mode), " for the prompt's first chunk");
  }
  switch (plan.prefill_mode) {
    case StepMode::kReplicated:
      return "--cp-layout replicated asks for the baseline, which keeps all rows on every rank but in MLA";
    case StepMode::kTp:
      return "--cp-kda-mode tp asks for rows that are not split";
    case StepMode::kState:
      return "--cp-kda-mode state keeps each rank's own rows in KDA too and passes its state between ranks";
    default:
      break;
  }
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

// What the parts of a report are worked out from.
struct Planned {
  const ParallelOptions& options;
  ParallelPlan plan;  // prefill_mode: as it will be
  parallel::ModelShape shape;
  parallel::RankShape ranks;
  int64_t chunk = 0;        // rows of a prefill step
  int64_t first_chunk = 0;  // of this prompt
};

parallel::LayoutPlan LayoutOf(StepMode mode, const Planned& p) {
  return parallel::MakeLayoutPlan(mode, p.shape.attention, p.ranks.tp, p.ranks.attn_cp);
}

PlanElements ElementsOf(StepMode mode, const Planned& p) {
  return CountElements(LayoutOf(mode, p), p.shape, p.ranks, p.first_chunk);
}

void AddCrossovers(const Planned& p, const parallel::Rates& rates, int64_t max_rows, PlanChoice& choice) {
  const auto& kinds = p.shape.attention;
  if (std::find(kinds.begin(), kinds.end(), parallel::BlockKind::kKda) == kinds.end()) return;
  for (const parallel::ModeRange& r : parallel::CheapestModes(p.shape, rates, p.ranks, max_rows)) {
    choice.cheapest.push_back({r.rows, std::string(StepModeName(r.mode))});
  }
  constexpr double kHalfBytes = 2;
  for (const std::string& name : parallel::CpStrategyNames()) {
    parallel::RankShape ranks = p.ranks;
    ranks.strategy = *parallel::FindCpStrategy(name);
    choice.break_even.push_back({name, parallel::StateBreakEven(p.shape, ranks, kHalfBytes)});
  }
}

PlanChoice Choose(const Planned& p) {
  const bool splits_rows = p.ranks.attn_cp > 1 && p.plan.prefill_mode != StepMode::kTp;
  PlanChoice choice{.mode = std::string(StepModeName(p.plan.prefill_mode)),
                    .strategy = splits_rows ? p.options.cp_strategy : "none",
                    .attention_form = FormName(p.plan.policy.attention_form),
                    .chunk = p.chunk,
                    .deterministic = p.plan.deterministic,
                    .why = StrCat(WhyMode(p.options, p.plan), "; ", WhyForm(p.options, p.plan), "."),
                    .alternatives = {},
                    .rates = {},
                    .cheapest = {},
                    .break_even = {}};
  if (p.ranks.attn_cp == 1) return choice;
  for (const auto& [mode, flags] : {std::pair(StepMode::kHead, "--cp-layout sharded --cp-kda-mode head"),
                                    std::pair(StepMode::kState, "--cp-layout sharded --cp-kda-mode state"),
                                    std::pair(StepMode::kTp, "--cp-layout sharded --cp-kda-mode tp"),
                                    std::pair(StepMode::kReplicated, "--cp-layout replicated")}) {
    if (mode == p.plan.prefill_mode) continue;
    choice.alternatives.push_back({std::string(StepModeName(mode)), flags, ElementsOf(mode, p)});
  }
  return choice;
}

// The types of the stored tensors where the weights are there, else BF16.
model::DTypeOf StoredTypes(const PlanRequest& request, const KimiLinearConfig& config,
                           std::vector<std::string>& notices) {
  const model::DTypeOf bf16 = [](const std::string&) { return DType::kBF16; };
  if (!request.shape.empty()) return bf16;
  StatusOr<Checkpoint> opened = Checkpoint::Open(request.model_path);
  if (!opened.ok() || !model::CheckCheckpoint(*opened, model::ExpectedTensors(config)).ok()) {
    notices.push_back(StrCat("the weights of ", request.model_path, " are not there: they count as BF16"));
    return bf16;
  }
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened).value());
  return [checkpoint](const std::string& name) { return checkpoint->Find(name)->dtype; };
}

Status DecideMemory(const PlanRequest& request, const ParallelPlan& plan, const KimiLinearConfig& config,
                    PlanReport& report) {
  const auto shape = model::MakeKimiLinearFootprint(config, StoredTypes(request, config, report.notices));
  EngineConfig sizes = request.sizes;
  sizes.parallel = request.parallel;
  const ModelCosts costs = CostsOf(*shape, plan, sizes);
  PERIGEE_ASSIGN_OR_RETURN(const Machine machine, ReadMachine(sizes.device));
  PERIGEE_ASSIGN_OR_RETURN(Sized sized, DecideSizes(sizes, costs, machine));
  report.memory_fit = CheckFits(sizes, sized, costs, machine).message();
  report.memory = std::move(sized.memory);
  return Status::Ok();
}

}  // namespace

StatusOr<PlanReport> MakePlan(const PlanRequest& request) {
  const ParallelOptions& o = request.parallel;
  PERIGEE_ASSIGN_OR_RETURN(const ParallelPlan resolved, ResolveParallel(o));
  PERIGEE_ASSIGN_OR_RETURN(const KimiLinearConfig config, ReadConfig(request));
  PERIGEE_RETURN_IF_ERROR(CheckRequest(request, config));

  PERIGEE_ASSIGN_OR_RETURN(const GivenRates given, ReadRates(o));
  const parallel::Rates rates = ToPlannerRates(given);
  Planned p{.options = o,
            .plan = resolved,
            .shape = model::KimiLinearShape(config),
            .ranks = {o.tp, o.attn_cp, resolved.policy.strategy},
            .chunk = request.sizes.chunked_prefill_size > 0 ? request.sizes.chunked_prefill_size
                                                            : DefaultChunk(o.attn_cp)};
  p.first_chunk = std::min(p.chunk, request.prompt);
  if (p.plan.planned) {
    const batch::SeqSpan first{.q_len = p.first_chunk, .kv_len = p.first_chunk};
    p.plan.prefill_mode = parallel::ChooseMode(p.shape, rates, p.ranks, {&first, 1}).mode;
  }
  PlanReport report;
  report.model = request.shape.empty() ? request.model_path : request.shape;
  report.prompt = request.prompt;
  report.tp = o.tp;
  report.attn_cp = o.attn_cp;
  report.ep = o.ep;
  report.unit = config.hidden_size;
  report.notices = resolved.notices;
  report.prefill = TransitionTable(LayoutOf(p.plan.prefill_mode, p), o.attn_cp);
  report.decode = TransitionTable(LayoutOf(StepMode::kDecode, p), o.attn_cp);
  report.elements = ElementsOf(p.plan.prefill_mode, p);
  report.choice = Choose(p);
  report.choice.rates = given;
  if (o.attn_cp > 1) AddCrossovers(p, rates, config.model_max_length, report.choice);
  report.flops = CountFlops(config, o, p.plan, request.prompt, p.chunk);
  std::vector<double> totals, pairs;
  for (const RankFlops& f : report.flops) {
    totals.push_back(f.total());
    pairs.push_back(f.pairs);
  }
  report.balance = Balance(totals);
  report.pairs_balance = Balance(pairs);
  PERIGEE_RETURN_IF_ERROR(DecideMemory(request, resolved, config, report));
  return report;
}

}  // namespace perigee::engine
