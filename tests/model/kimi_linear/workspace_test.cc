// The room that a step takes, against the tally that is made of the shapes alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/context.h"
#include "kernels/gemm/gemm.h"
#include "model/registry.h"
#include "testing/model_harness.h"

namespace perigee::testing {
namespace {

using batch::StepMode;
using parallel::AttentionForm;

struct Case {
  std::string model;
  ModelHarness::Ranks ranks;
};

constexpr int kThreads = 3;
constexpr int64_t kRows = 320;  // of a prompt
constexpr int64_t kContext = 384;

// Of prompts of up to kRows rows of `sequences` sequences together, and of 8 decoded rows.
uint64_t Tallied(const Case& c, int rank, int64_t sequences) {
  const auto files = model::OpenModel(c.model);
  const model::ModelFootprint& shape = (*files)->footprint();
  parallel::Shard shard = parallel::ShardOf(
      comm::GridPosition{.tp = c.ranks.tp, .attn_cp = c.ranks.attn_cp, .ep = c.ranks.ep, .rank = rank});
  shard.holds_kda = c.ranks.prefill_mode == StepMode::kState;
  kernels::WorkspaceTally tally(kThreads);
  for (const batch::Phase phase : {batch::Phase::kPrefill, batch::Phase::kDecode}) {
    const bool prefill = phase == batch::Phase::kPrefill;
    const model::StepShape step{.phase = phase,
                                .mode = prefill ? c.ranks.prefill_mode : StepMode::kDecode,
                                .form = c.ranks.form,
                                .tp = c.ranks.tp,
                                .attn_cp = c.ranks.attn_cp,
                                .rows = prefill ? kRows : 8,
                                .sequences = prefill ? sequences : 8,
                                .keys = kContext};
    const kernels::WorkspaceTally::Scope scope(tally);
    tally.Floats(step.rows * shape.hidden_size());
    shape.TallyForward(shard, step, tally);
    // The harness multiplies all wanted rows with the head at once, without room for logits.
    TallyGemm(tally, step.rows, shard.Of(shape.sizes().vocab_size).size(), shape.hidden_size());
  }
  return tally.peak_bytes();
}

std::vector<int32_t> Ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(i * 13 % 199));
  return ids;
}

std::vector<Case> Cases() {
  const std::string random = PERIGEE_TEST_DATA "/random/";
  std::vector<Case> cases = {{PERIGEE_MODELS "/tiny-kimi-linear", {}}};
  for (const char* name : {"eight_heads", "odd_f32", "sparse_f16", "six_heads"})
    cases.push_back({random + name, {}});
  for (const StepMode mode : {StepMode::kTp, StepMode::kHead, StepMode::kState, StepMode::kReplicated}) {
    for (const AttentionForm form : {AttentionForm::kMaterialised, AttentionForm::kAbsorbed}) {
      for (const auto& [tp, cp] : {std::pair(4, 4), std::pair(4, 2), std::pair(8, 8)}) {
        cases.push_back(
            {random + "eight_heads", {.tp = tp, .attn_cp = cp, .prefill_mode = mode, .form = form}});
      }
    }
  }
  cases.push_back({random + "eight_heads", {.tp = 4, .attn_cp = 1, .ep = 4}});
  return cases;
}

TEST(WorkspaceTally, IsNeverLessThanAStepTakesAndHardlyMore) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.model + " tp " + std::to_string(c.ranks.tp) + " cp " + std::to_string(c.ranks.attn_cp) +
                 " mode " + std::string(batch::StepModeName(c.ranks.prefill_mode)) + " form " +
                 std::to_string(static_cast<int>(c.ranks.form)));
    ModelHarness harness(c.model, kThreads, c.ranks, 8, kContext);
    harness.Run({{.ids = Ids(kRows + 10), .piece = kRows, .decode_rows = 10}});
    for (int r = 0; r < c.ranks.tp; ++r) {
      const uint64_t tallied = Tallied(c, r, 1);
      const uint64_t taken = harness.WorkspacePeak(static_cast<size_t>(r));
      EXPECT_LE(taken, tallied);
      EXPECT_GE(static_cast<double>(taken), 0.6 * static_cast<double>(tallied)) << taken << " of " << tallied;
    }
  }
}

TEST(WorkspaceTally, CoversManyShortSequencesAndManyDecodeRows) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.model + " tp " + std::to_string(c.ranks.tp));
    ModelHarness harness(c.model, kThreads, c.ranks, 8, kContext);
    std::vector<ModelHarness::Sequence> many;
    for (int64_t s = 0; s < 8; ++s) many.push_back({.ids = Ids(20 + 5 * s), .piece = 0, .decode_rows = 12});
    harness.Run(many);
    for (int r = 0; r < c.ranks.tp; ++r)
      EXPECT_LE(harness.WorkspacePeak(static_cast<size_t>(r)), Tallied(c, r, 8));
  }
}

}  // namespace
}  // namespace perigee::testing
