#include "cli/bench_offline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "testing/fake_engine.h"

namespace perigee::cli {
namespace {

engine::ModelInfo Info() {
  engine::ModelInfo info;
  info.vocab_size = 50;
  info.context_length = 4096;
  return info;
}

TEST(MeasurePrefill, AsksForOneTokenAfterPromptsThatDiffer) {
  test::FakeEngine engine(
      [](const engine::Request&) {
        return test::Script{.tokens = {1}, .finish = engine::FinishReason::kLength};
      },
      Info());
  const auto result = MeasurePrefill(engine, 33, 4);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->seconds.size(), 4u);  // the warm-up does not count
  std::set<std::vector<engine::TokenId>> prompts;
  for (const engine::Request& request : engine.requests()) {
    EXPECT_EQ(request.prompt.size(), 33u);
    EXPECT_EQ(request.sampling.max_new_tokens, 1);
    EXPECT_TRUE(request.sampling.ignore_eos);
    prompts.insert(request.prompt);
  }
  EXPECT_EQ(prompts.size(), 5u);
}

TEST(MeasurePrefill, AFailedRequestIsTheResult) {
  test::FakeEngine engine(
      [](const engine::Request&) {
        return test::Script{
            .tokens = {}, .finish = engine::FinishReason::kError, .error = InternalError("lost")};
      },
      Info());
  const auto result = MeasurePrefill(engine, 5, 2);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), "lost");
}

TEST(MeasureDecode, CountsTheStepsOfAllAndEndsThem) {
  test::FakeEngine engine(
      [](const engine::Request&) {
        return test::Script{.tokens = {1}, .finish = engine::FinishReason::kNone};
      },
      Info());
  engine.set_step_time(std::chrono::microseconds(200));
  const auto result = MeasureDecode(engine, 3, 0, 6);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->seconds.size(), 6u);
  EXPECT_EQ(engine.requests().size(), 3u);
  EXPECT_EQ(engine.last_request().prompt.size(), 1u);  // depth 0 still needs a token to begin with
  EXPECT_TRUE(engine.WaitIdle());
  EXPECT_EQ(engine.cancelled(), 3);
}

TEST(MeasureDecode, RequestsThatEndTooEarlyAreSaid) {
  test::FakeEngine engine(
      [](const engine::Request&) {
        return test::Script{.tokens = {1, 2}, .finish = engine::FinishReason::kLength};
      },
      Info());
  const auto result = MeasureDecode(engine, 2, 8, 6);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("batch 2 after 8 tokens"), std::string::npos);
}

TEST(BenchReport, JsonHoldsMediansAndRuns) {
  BenchReport report;
  report.setting = {.command = "perigee bench \"x\"", .commit = "abc", .device = "cpu"};
  report.prefill.push_back({.tokens = 100, .seconds = {0.5, 0.1, 0.2}});
  report.decode.push_back({.batch = 4, .depth = 7, .seconds = {0.010, 0.030}, .seconds_in_ranks = 0.015});
  const auto json = nlohmann::json::parse(ReportJson(report));
  EXPECT_EQ(json["command"], "perigee bench \"x\"");
  EXPECT_NEAR(json["prefill"][0]["ttft_ms"].get<double>(), 200, 1e-9);
  EXPECT_NEAR(json["prefill"][0]["tokens_per_s"].get<double>(), 500, 1e-9);
  EXPECT_EQ(json["prefill"][0]["runs_ms"].size(), 3u);
  EXPECT_NEAR(json["decode"][0]["ms_per_step"].get<double>(), 20, 1e-9);
  EXPECT_NEAR(json["decode"][0]["tokens_per_s"].get<double>(), 200, 1e-9);
  EXPECT_NE(ReportTable(report).find("200.0"), std::string::npos);
}

}  // namespace
}  // namespace perigee::cli
