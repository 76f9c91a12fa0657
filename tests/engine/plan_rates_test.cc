#include "engine/plan_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/mode_chooser.h"
#include "model/kimi_linear/config.h"
#include "model/kimi_linear/model.h"
#include "testing/safetensors_writer.h"

namespace perigee::engine {
namespace {

using batch::StepMode;
using ::testing::HasSubstr;

ParallelOptions Profile(const test::TempFolder& folder, const std::string& json) {
  folder.Write("profile.json", json);
  ParallelOptions options;
  options.plan_profile = folder.path() + "/profile.json";
  return options;
}

parallel::Rates Rates(const ParallelOptions& options) {
  const StatusOr<parallel::Rates> rates = ReadRates(options);
  EXPECT_TRUE(rates.ok()) << (rates.ok() ? "" : rates.status().message());
  return rates.ok() ? *rates : parallel::Rates{};
}

TEST(PlanRates, ProfileOverDefaultsAndFlagsOverBoth) {
  EXPECT_EQ(Rates({}).row_bytes, DefaultRates().row_bytes);
  const test::TempFolder folder;
  ParallelOptions options = Profile(
      folder,
      R"({"link_gbps": 8, "tflops": 2, "row_bytes": 2, "attn_tp": {"link_gbps": 80, "latency_us": 5}})");
  parallel::Rates rates = Rates(options);
  EXPECT_EQ(rates.tp.bytes_per_second, 1e9);
  EXPECT_EQ(rates.cp.bytes_per_second, 1e9);
  EXPECT_EQ(rates.cp.seconds_per_call, DefaultRates().cp.seconds_per_call);
  EXPECT_EQ(rates.attn_tp.bytes_per_second, 1e10);
  EXPECT_DOUBLE_EQ(rates.attn_tp.seconds_per_call, 5e-6);
  EXPECT_EQ(rates.flops_per_second, 2e12);
  EXPECT_EQ(rates.row_bytes, 2);
  options.link_gbps = 16;
  options.latency_us = 0;
  options.tflops = 1;
  rates = Rates(options);
  for (const parallel::Link& link : {rates.tp, rates.cp, rates.attn_tp}) {
    EXPECT_EQ(link.bytes_per_second, 2e9);
    EXPECT_EQ(link.seconds_per_call, 0);
  }
  EXPECT_EQ(rates.flops_per_second, 1e12);
}

TEST(PlanRates, MistakesNameFileAndKey) {
  const test::TempFolder folder;
  const auto refused = [&](const std::string& json, const std::string& said) {
    const StatusOr<parallel::Rates> rates = ReadRates(Profile(folder, json));
    ASSERT_FALSE(rates.ok()) << json;
    EXPECT_THAT(rates.status().message(), HasSubstr(said));
    EXPECT_THAT(rates.status().message(), HasSubstr("profile.json"));
  };
  refused("{", "accepted: a JSON object");
  refused("[1]", "accepted: a JSON object");
  refused(R"({"link_gbps": 0})", "link_gbps: \"0\"; accepted: a number, more than 0");
  refused(R"({"tflops": "fast"})", "tflops: ");
  refused(R"({"latency_us": -1})", "latency_us: \"-1\"; accepted: a number, 0 or more");
  refused(R"({"cp": 3})", "cp: accepted: an object");
  refused(R"({"cp": {"tflops": 3}})", "cp: unknown key; accepted: link_gbps, latency_us");
  refused(R"({"speed": 3})", "unknown key; accepted: link_gbps, latency_us, tflops, row_bytes");
  ParallelOptions options;
  options.plan_profile = "/nonexistent/profile.json";
  EXPECT_THAT(ReadRates(options).status().message(), HasSubstr("/nonexistent/profile.json"));
}

batch::BatchPlan Prompt(int64_t rows) {
  batch::BatchPlan plan;
  plan.spans.resize(1);
  plan.spans[0].tokens.resize(static_cast<size_t>(rows));
  return plan;
}

TEST(ModeChooser, FixedModes) {
  ModeChooser chooser(StepMode::kReplicated);
  EXPECT_EQ(chooser.Choose(Prompt(9)), StepMode::kReplicated);
  batch::BatchPlan decode = Prompt(1);
  decode.phase = batch::Phase::kDecode;
  EXPECT_EQ(chooser.Choose(decode), StepMode::kDecode);
}

TEST(ModeChooser, EachStepTakesTheCheapestMode) {
  const parallel::ModelShape model = model::KimiLinearShape(*model::NamedShape("kimi-linear-48b"));
  const parallel::Link link{3e9, 1e-4};
  const parallel::Rates rates{link, link, link, 1e15, 2};
  const parallel::RankShape ranks{4, 4, parallel::Zigzag};
  ModeChooser chooser(model, rates, ranks);
  EXPECT_EQ(chooser.Choose(Prompt(4)), StepMode::kTp);
  EXPECT_EQ(chooser.stats().tp.chosen, 1u);
  EXPECT_GT(chooser.stats().tp.estimated_seconds, 0);
  EXPECT_LT(chooser.stats().tp.estimated_seconds, chooser.stats().head.estimated_seconds);
  EXPECT_LT(chooser.stats().tp.estimated_seconds, chooser.stats().state.estimated_seconds);
  EXPECT_EQ(chooser.Choose(Prompt(2000)), StepMode::kHead);
  EXPECT_EQ(chooser.Choose(Prompt(20000)), StepMode::kState);
  // Many short prompts have many states: what their rows alone would not say.
  batch::BatchPlan many;
  for (int i = 0; i < 100; ++i) many.spans.push_back(Prompt(200).spans[0]);
  EXPECT_EQ(chooser.Choose(many), StepMode::kHead);
  batch::BatchPlan decode = Prompt(1);
  decode.phase = batch::Phase::kDecode;
  EXPECT_EQ(chooser.Choose(decode), StepMode::kDecode);
  EXPECT_EQ(chooser.stats().tp.chosen, 1u);
  EXPECT_EQ(chooser.stats().head.chosen, 2u);
  EXPECT_EQ(chooser.stats().state.chosen, 1u);
}

}  // namespace
}  // namespace perigee::engine
