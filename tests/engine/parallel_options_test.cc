#include "engine/parallel_options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace perigee::engine {
namespace {

using batch::StepMode;
using parallel::AttentionForm;

// The command line that the project starts from.
ParallelOptions SeedsFlags() {
  ParallelOptions options;
  options.tp = 4;
  options.attn_cp = 4;
  options.enable_prefill_cp = true;
  options.cp_strategy = "zigzag";
  return options;
}

ParallelPlan Resolved(const ParallelOptions& options) {
  StatusOr<ParallelPlan> plan = ResolveParallel(options);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.status().message());
  return plan.ok() ? *plan : ParallelPlan{};
}

void ExpectUsageError(const Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), StatusCode::kUsage);
  EXPECT_EQ(status.message(), message);
}
void ExpectRefused(const ParallelOptions& options, const std::string& message) {
  const StatusOr<ParallelPlan> plan = ResolveParallel(options);
  ASSERT_FALSE(plan.ok()) << "expected: " << message;
  ExpectUsageError(plan.status(), message);
}

TEST(ParallelOptions, OneRankNeedsNoFlags) {
  const ParallelPlan plan = Resolved({});
  EXPECT_EQ(plan.prefill_mode, StepMode::kTp);
  EXPECT_TRUE(plan.deterministic);
  EXPECT_EQ(plan.policy.attention_form, AttentionForm::kMaterialised);
  EXPECT_TRUE(plan.notices.empty());
}

TEST(ParallelOptions, SeedsFlagsShardRowsAndStayDeterministic) {
  const ParallelPlan plan = Resolved(SeedsFlags());
  EXPECT_EQ(plan.prefill_mode, StepMode::kHead);
  EXPECT_EQ(plan.policy.strategy, &parallel::Zigzag);
  EXPECT_EQ(plan.policy.attention_form, AttentionForm::kMaterialised);
  EXPECT_TRUE(plan.deterministic);
  EXPECT_TRUE(plan.notices.empty());
}

TEST(ParallelOptions, LayoutAndKdaModeDecideTheStepMode) {
  struct Case {
    const char* layout;
    const char* kda_mode;
    StepMode mode;
  };
  for (const Case& c : {Case{"", "", StepMode::kHead}, Case{"sharded", "auto", StepMode::kHead},
                        Case{"sharded", "head", StepMode::kHead}, Case{"", "tp", StepMode::kTp},
                        Case{"", "state", StepMode::kState}, Case{"replicated", "", StepMode::kReplicated}}) {
    ParallelOptions options = SeedsFlags();
    options.cp_layout = c.layout;
    options.cp_kda_mode = c.kda_mode;
    EXPECT_EQ(Resolved(options).prefill_mode, c.mode) << c.layout << " " << c.kda_mode;
  }
}

TEST(ParallelOptions, StateIsHonouredWithALine) {
  ParallelOptions options = SeedsFlags();
  options.cp_kda_mode = "state";
  const std::vector<std::string> line = {
      "--cp-kda-mode state: results repeat, but are within 5e-4 of one rank's log-probabilities, not equal "
      "to "
      "the bit"};
  EXPECT_EQ(Resolved(options).notices, line);
  EXPECT_TRUE(Resolved(options).deterministic);
  EXPECT_FALSE(Resolved(options).planned);
  options.deterministic = true;
  EXPECT_EQ(Resolved(options).notices, line);
  EXPECT_EQ(Resolved(options).prefill_mode, StepMode::kState);
  options.deterministic = false;
  EXPECT_TRUE(Resolved(options).notices.empty());
  EXPECT_EQ(Resolved(options).prefill_mode, StepMode::kState);
  options.cp_layout = "replicated";
  ExpectRefused(
      options,
      "--cp-layout replicated with --cp-kda-mode state: KDA keeps to its rows only where the residual "
      "does; accepted: --cp-layout sharded, or --cp-kda-mode auto, head or tp");
}

// While results must be those of one rank, auto means head.
TEST(ParallelOptions, AutoIsPlannedOnlyWhenResultsMayDiffer) {
  ParallelOptions options = SeedsFlags();
  EXPECT_FALSE(Resolved(options).planned);
  options.deterministic = false;
  EXPECT_TRUE(Resolved(options).planned);
  options.cp_kda_mode = "auto";
  EXPECT_TRUE(Resolved(options).planned);
  options.cp_kda_mode = "head";
  EXPECT_FALSE(Resolved(options).planned);
  options.cp_kda_mode = "";
  options.cp_layout = "replicated";
  EXPECT_FALSE(Resolved(options).planned);
  options = SeedsFlags();
  options.ep = 2;  // turns deterministic off
  EXPECT_TRUE(Resolved(options).planned);
  options.attn_cp = 1;
  EXPECT_FALSE(Resolved(options).planned);
}

TEST(ParallelOptions, RatesThatNobodyReckonsWithAreSaid) {
  ParallelOptions options = SeedsFlags();
  options.plan_profile = "rates.json";
  options.tflops = 1;
  EXPECT_EQ(
      Resolved(options).notices,
      (std::vector<std::string>{"--plan-profile, --tflops: steps are chosen by rates only with several CP "
                                "ranks, --cp-kda-mode auto and --deterministic off"}));
  options.deterministic = false;
  EXPECT_TRUE(Resolved(options).notices.empty());
  options.attn_cp = 1;
  EXPECT_EQ(Resolved(options).notices.size(), 2u);
}

// KDA of the whole attention shard is held where the state mode can come up.
TEST(ParallelOptions, WhoHoldsTheShardsKda) {
  ParallelOptions options = SeedsFlags();
  EXPECT_FALSE(ShardOfRank(options, 1).holds_kda);
  options.cp_kda_mode = "state";
  EXPECT_TRUE(ShardOfRank(options, 1).holds_kda);
  options.attn_cp = 1;
  EXPECT_FALSE(ShardOfRank(options, 1).holds_kda);
  options = SeedsFlags();
  options.deterministic = false;
  EXPECT_TRUE(ShardOfRank(options, 1).holds_kda);
  options.cp_kda_mode = "tp";
  EXPECT_FALSE(ShardOfRank(options, 1).holds_kda);
}

TEST(ParallelOptions, TheStrategyIsTheNamedOne) {
  ParallelOptions options = SeedsFlags();
  options.cp_strategy = "contiguous";
  EXPECT_EQ(Resolved(options).policy.strategy, &parallel::Contiguous);
}

TEST(ParallelOptions, TpWithoutCpIsTheTpMode) {
  ParallelOptions options;
  options.tp = 8;
  EXPECT_EQ(Resolved(options).prefill_mode, StepMode::kTp);
}

TEST(ParallelOptions, RankCountsAreChecked) {
  ParallelOptions options = SeedsFlags();
  options.tp = 0;
  ExpectRefused(options, "--tp 0: accepted: 1 and more");
  options.tp = 8;
  options.attn_cp = 3;
  ExpectRefused(options, "--attn-cp-size 3: must divide --tp 8; accepted: 1, 2, 4, 8");
  options.attn_cp = 0;
  ExpectRefused(options, "--attn-cp-size 0: must divide --tp 8; accepted: 1, 2, 4, 8");
  options.attn_cp = 4;
  options.ep = 3;
  ExpectRefused(options, "--ep-size 3: must divide --tp 8; accepted: 1, 2, 4, 8");
}

TEST(ParallelOptions, PrefillCpNeedsAStrategy) {
  ParallelOptions options = SeedsFlags();
  options.cp_strategy = "";
  ExpectRefused(options, "--enable-prefill-cp needs --cp-strategy; accepted: zigzag, contiguous");
}

TEST(ParallelOptions, CpRanksNeedPrefillCp) {
  ParallelOptions options = SeedsFlags();
  options.enable_prefill_cp = false;
  ExpectRefused(options,
                "--attn-cp-size 4 needs --enable-prefill-cp (with --cp-strategy; accepted: zigzag, "
                "contiguous), or --attn-cp-size 1");
}

TEST(ParallelOptions, UnknownNamesListTheKnownOnes) {
  ParallelOptions options = SeedsFlags();
  options.cp_strategy = "ring";
  ExpectRefused(options, "--cp-strategy: unknown CP strategy \"ring\"; accepted: zigzag, contiguous");
  options = SeedsFlags();
  options.cp_layout = "folded";
  ExpectRefused(options, "--cp-layout \"folded\": accepted: sharded, replicated");
  options = SeedsFlags();
  options.cp_kda_mode = "ring";
  ExpectRefused(options, "--cp-kda-mode \"ring\": accepted: auto, head, state, tp");
  options = SeedsFlags();
  options.cp_attn_form = "mha";
  ExpectRefused(options, "--cp-attn-form \"mha\": accepted: auto, absorbed, materialised");
}

TEST(ParallelOptions, PrefillCpOfOneCpRankIsAcceptedWithANotice) {
  ParallelOptions options = SeedsFlags();
  options.attn_cp = 1;
  const ParallelPlan plan = Resolved(options);
  EXPECT_EQ(plan.prefill_mode, StepMode::kTp);
  EXPECT_EQ(
      plan.notices,
      (std::vector<std::string>{"no effect with --attn-cp-size 1: --enable-prefill-cp, --cp-strategy"}));
}

TEST(ParallelOptions, RankCountsThatDoNotShareThePartsOfSums) {
  ParallelOptions options;
  options.tp = 3;
  const std::string why = "--tp 3: sums are taken in 8 parts, which only 1, 2, 4 or 8 ranks can share";
  const ParallelPlan plan = Resolved(options);
  EXPECT_FALSE(plan.deterministic);
  EXPECT_EQ(plan.policy.attention_form, AttentionForm::kByCost);
  EXPECT_EQ(plan.notices, (std::vector<std::string>{"--deterministic is off: " + why}));
  options.deterministic = true;
  ExpectRefused(options, "--deterministic on cannot hold with " + why);
  options.deterministic = false;
  EXPECT_FALSE(Resolved(options).deterministic);
  EXPECT_TRUE(Resolved(options).notices.empty());
}

TEST(ParallelOptions, ExpertGroupsBetweenOneAndAllRanks) {
  ParallelOptions options = SeedsFlags();
  options.ep = 2;
  const std::string why = "--ep-size 2: accepted with --deterministic on: 1 or 4";
  const ParallelPlan plan = Resolved(options);
  EXPECT_FALSE(plan.deterministic);
  EXPECT_EQ(plan.notices, (std::vector<std::string>{"--deterministic is off: " + why}));
  options.deterministic = true;
  ExpectRefused(options, "--deterministic on cannot hold with " + why);
  options.ep = 4;
  EXPECT_TRUE(Resolved(options).deterministic);
}

TEST(ParallelOptions, TheAttentionFormIsFreeOnlyWhenResultsMayDiffer) {
  ParallelOptions options = SeedsFlags();
  options.cp_attn_form = "absorbed";
  ExpectRefused(options,
                "--cp-attn-form absorbed: with --deterministic on prompt rows are materialised and generated "
                "rows absorbed; accepted: auto, materialised, or --deterministic off");
  options.cp_attn_form = "materialised";
  EXPECT_EQ(Resolved(options).policy.attention_form, AttentionForm::kMaterialised);
  options.cp_attn_form = "auto";
  EXPECT_EQ(Resolved(options).policy.attention_form, AttentionForm::kMaterialised);

  options.deterministic = false;
  EXPECT_EQ(Resolved(options).policy.attention_form, AttentionForm::kByCost);
  options.cp_attn_form = "";
  EXPECT_EQ(Resolved(options).policy.attention_form, AttentionForm::kByCost);
  options.cp_attn_form = "absorbed";
  EXPECT_EQ(Resolved(options).policy.attention_form, AttentionForm::kAbsorbed);
  options.cp_attn_form = "materialised";
  EXPECT_EQ(Resolved(options).policy.attention_form, AttentionForm::kMaterialised);
}

model::ModelSizes Sizes48B() {
  return {.vocab_size = 163840, .kda_heads = 32, .mla_heads = 32, .experts = 256};
}

TEST(CheckModelCut, AcceptsWhatDivides) {
  for (const int tp : {1, 2, 4, 8, 16, 32}) {
    ParallelOptions options;
    options.tp = tp;
    options.ep = tp;
    EXPECT_TRUE(CheckModelCut(options, Sizes48B()).ok()) << tp;
  }
}

TEST(CheckModelCut, NamesWhatDoesNotDivide) {
  ParallelOptions options;
  options.tp = 3;
  ExpectUsageError(CheckModelCut(options, Sizes48B()),
                   "--tp 3 does not divide the model's 32 KDA heads; accepted: a divisor of 32");
  options.tp = 8;
  model::ModelSizes sizes = Sizes48B();
  sizes.mla_heads = 12;
  ExpectUsageError(CheckModelCut(options, sizes),
                   "--tp 8 does not divide the model's 12 attention heads; accepted: a divisor of 12");
  sizes = Sizes48B();
  sizes.experts = 20;
  options.ep = 8;
  ExpectUsageError(CheckModelCut(options, sizes),
                   "--ep-size 8 does not divide the model's 20 experts; accepted: a divisor of 20");
  sizes = Sizes48B();
  sizes.vocab_size = 5;
  ExpectUsageError(
      CheckModelCut(options, sizes),
      "--tp 8: the vocabulary has only 5 rows; accepted: a number that divides the heads and is at most "
      "that");
}

}  // namespace
}  // namespace perigee::engine
