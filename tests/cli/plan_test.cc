#include "cli/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace perigee::cli {
namespace {

TEST(Plan, JsonHasTheReport) {
  engine::PlanRequest request;
  request.shape = "kimi-linear-48b";
  request.prompt = 131072;
  request.parallel = {.tp = 4, .attn_cp = 4, .enable_prefill_cp = true, .cp_strategy = "zigzag"};
  request.parallel.link_gbps = 100;
  const StatusOr<engine::PlanReport> report = engine::MakePlan(request);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const nlohmann::json json = nlohmann::json::parse(PlanJson(*report));

  const nlohmann::json& kda = json.at("transitions").at("prefill").at(1);
  EXPECT_EQ(kda.at("kind"), "kda");
  EXPECT_EQ(kda.at("blocks"), 20);
  EXPECT_EQ(kda.at("input"), "all_gather");
  EXPECT_EQ(kda.at("output"), "reduce_scatter");
  EXPECT_EQ(json.at("transitions").at("decode").size(), 5u);
  EXPECT_EQ(json.at("elements_per_token").at("elements").at("total"), 165456);
  EXPECT_EQ(json.at("elements_per_token").at("u").at("total"), 71.8125);
  EXPECT_EQ(json.at("flops_per_rank").at("ranks").size(), 4u);
  EXPECT_EQ(json.at("flops_per_rank").at("ranks").at(3).at("pairs"), 2147500032);
  EXPECT_EQ(json.at("flops_per_rank").at("balance"), report->balance);
  EXPECT_EQ(json.at("choice").at("mode"), "head");
  EXPECT_EQ(json.at("choice").at("why"), report->choice.why);
  EXPECT_EQ(json.at("choice").at("alternatives").at(2).at("mode"), "replicated");
  const nlohmann::json& rates = json.at("choice").at("rates");
  EXPECT_EQ(rates.at("cp").at("link_gbps").at("value"), 100);
  EXPECT_EQ(rates.at("cp").at("link_gbps").at("from"), "flag");
  EXPECT_EQ(rates.at("row_bytes").at("value"), 4);
  EXPECT_EQ(rates.at("row_bytes").at("from"), "default");
  EXPECT_EQ(json.at("choice").at("cheapest").at(0).at("from_rows"), 1);
  EXPECT_EQ(json.at("choice").at("state_break_even").at(1).at("strategy"), "contiguous");
  EXPECT_EQ(json.at("choice").at("state_break_even").at(1).at("rows"), report->choice.break_even[1].rows);
  EXPECT_EQ(json.at("memory").at("per_rank").size(), 4u);
  EXPECT_EQ(json.at("memory").at("per_rank").at(0).at("weights"), report->memory.ranks[0].weights);
  EXPECT_EQ(json.at("memory").at("embedding_per_process"), 754974720);
  EXPECT_EQ(json.at("memory").at("per_rank").at(3).at("workspace"), report->memory.ranks[3].workspace);
  EXPECT_EQ(json.at("memory").at("tokens"), report->memory.tokens);
}

}  // namespace
}  // namespace perigee::cli
