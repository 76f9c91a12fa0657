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

GivenRates Read(const ParallelOptions& options) {
  const StatusOr<GivenRates> rates = ReadRates(options);
  EXPECT_TRUE(rates.ok()) << (rates.ok() ? "" : rates.status().message());
  return rates.ok() ? *rates : GivenRates{};
}

void ExpectRate(const GivenRate& rate, double value, RateSource source) {
  EXPECT_EQ(rate.value, value);
  EXPECT_EQ(RateSourceName(rate.source), RateSourceName(source));
}

TEST(PlanRates, ProfileOverDefaultsAndFlagsOverBoth) {
  constexpr RateSource kDefault = RateSource::kDefault, kProfile = RateSource::kProfile,
                       kFlag = RateSource::kFlag;
  ExpectRate(Read({}).row_bytes, DefaultRates().row_bytes.value, kDefault);
  const test::TempFolder folder;
  ParallelOptions options = Profile(
      folder,
      R"({"attn_tp": {"link_gbps": 80, "latency_us": 5}, "link_gbps": 8, "tflops": 2, "row_bytes": 2})");
  GivenRates rates = Read(options);
  ExpectRate(rates.tp.link_gbps, 8, kProfile);
  ExpectRate(rates.cp.link_gbps, 8, kProfile);
  ExpectRate(rates.cp.latency_us, DefaultRates().cp.latency_us.value, kDefault);
  ExpectRate(rates.attn_tp.link_gbps, 80, kProfile);
  ExpectRate(rates.attn_tp.latency_us, 5, kProfile);
  ExpectRate(rates.tflops, 2, kProfile);
  ExpectRate(rates.row_bytes, 2, kProfile);
  options.link_gbps = 16;
  options.latency_us = 0;
  options.tflops = 1;
  rates = Read(options);
  for (const GivenLink& link : {rates.tp, rates.cp, rates.attn_tp}) {
    ExpectRate(link.link_gbps, 16, kFlag);
    ExpectRate(link.latency_us, 0, kFlag);
  }
  ExpectRate(rates.tflops, 1, kFlag);
  ExpectRate(rates.row_bytes, 2, kProfile);
}

TEST(PlanRates, UnitsOfThePlanner) {
  const GivenLink link{.link_gbps = {8}, .latency_us = {5}};
  GivenRates given{.tp = link, .cp = link, .attn_tp = link, .tflops = {2}, .row_bytes = {2}};
  given.cp.link_gbps.value = 80;
  const parallel::Rates rates = ToPlannerRates(given);
  EXPECT_EQ(rates.tp.bytes_per_second, 1e9);
  EXPECT_EQ(rates.cp.bytes_per_second, 1e10);
  EXPECT_DOUBLE_EQ(rates.attn_tp.seconds_per_call, 5e-6);
  EXPECT_EQ(rates.flops_per_second, 2e12);
  EXPECT_EQ(rates.row_bytes, 2);
}

TEST(PlanRates, MistakesNameFileAndPlaceOrKey) {
  const test::TempFolder folder;
  const auto refused = [&](const std::string& json, const std::string& said) {
    const StatusOr<GivenRates> rates = ReadRates(Profile(folder, json));
    ASSERT_FALSE(rates.ok()) << json;
    EXPECT_EQ(rates.status().code(), StatusCode::kUsage) << json;
    EXPECT_THAT(rates.status().message(), HasSubstr("profile.json\": " + said));
    EXPECT_EQ(rates.status().message().find('\n'), std::string::npos) << json;
  };
  refused("", "is not valid JSON at line 1, column 1");
  refused("{", "is not valid JSON at line 1, column 2");
  refused("{\"link_gbps\": 8,\n \"tflops\" 3}", "is not valid JSON at line 2, column 11");
  refused("{} x", "is not valid JSON at line 1, column 4");
  refused("{\"a\xff\": 1}", "is not valid JSON at line 1, column 4");
  refused(std::string("{}\0{", 4), "holds a NUL byte");
  refused(R"({"tflops": 1e999})", "holds a number beyond the range of a double");
  refused("[1]", "accepted: a JSON object");
  refused("3", "accepted: a JSON object");
  refused(R"({"link_gbps": 0})", "link_gbps \"0\" is not accepted; accepted: a number from 1e-9 to 1e9");
  refused(R"({"tflops": "fast"})", R"(tflops "\"fast\"" is not accepted; accepted: a number from 1e-9)");
  refused(R"({"tflops": "\ud83d\ude00"})", R"(tflops "\"\\ud83d\\ude00\"" is not accepted)");
  refused(R"({"row_bytes": 1e10})",
          "row_bytes \"10000000000.0\" is not accepted; accepted: a number from 1e-9");
  refused(R"({"tflops": null})", "tflops \"null\" is not accepted");
  refused(R"({"latency_us": -1})",
          "latency_us \"-1\" is not accepted; accepted: 0, or a number from 1e-9 to 1e9");
  refused(R"({"cp": 3})", "cp \"3\" is not accepted; accepted: an object with link_gbps and latency_us");
  refused(R"({"cp": {"tflops": 3}})", "cp: unknown key \"tflops\"; accepted: latency_us, link_gbps");
  refused(R"({"speed": 3})",
          "unknown key \"speed\"; accepted: attn_tp, cp, latency_us, link_gbps, row_bytes, tflops, tp");
  refused(R"({"tflops": 3, "tflops": 3})", "the key \"tflops\" is given twice");
  refused(R"({"tp": {"latency_us": 3, "link_gbps": 1, "latency_us": 2}})",
          "the key \"latency_us\" is given twice");
  refused(std::string((1 << 20) + 1, ' '), "1.00 MiB; accepted: at most 1.00 MiB");
  // The same key in two objects is no mistake.
  ExpectRate(Read(Profile(folder, R"({"tp": {"latency_us": 3}, "cp": {"latency_us": 2}})")).tp.latency_us, 3,
             RateSource::kProfile);
}

TEST(PlanRates, WhatIsNoFileIsSaidWithItsName) {
  const test::TempFolder folder;
  ParallelOptions options;
  options.plan_profile = folder.path();
  EXPECT_EQ(ReadRates(options).status().message(),
            "--plan-profile " + folder.path() + ": not a regular file");
  options.plan_profile = "/nonexistent/profile.json";
  EXPECT_EQ(ReadRates(options).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ReadRates(options).status().message(),
              HasSubstr("--plan-profile /nonexistent/profile.json: cannot"));
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
