#include "server/metrics.h"

#include <thread>

#include "base/strings.h"
#include "server/api_fixture.h"
#include "testing/prometheus.h"

namespace perigee::server {
namespace {

using std::chrono::milliseconds;
using test::MetricsPage;
using test::ParseMetrics;

TEST(LatencyHistogram, BucketsAreCumulative) {
  LatencyHistogram histogram;
  histogram.Observe(milliseconds(1));  // a bound belongs to its bucket
  histogram.Observe(std::chrono::duration<double>(0.002), 3);
  histogram.Observe(std::chrono::hours(1));
  PrometheusText text;
  text.Family("x_seconds", "histogram", "Help.");
  histogram.Write(text);
  const MetricsPage page = ParseMetrics(text.Take());
  EXPECT_EQ(page.at("x_seconds_bucket{le=\"0.001\"}"), 1);
  EXPECT_EQ(page.at("x_seconds_bucket{le=\"0.0025\"}"), 4);
  EXPECT_EQ(page.at("x_seconds_bucket{le=\"600\"}"), 4);
  EXPECT_EQ(page.at("x_seconds_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(page.at("x_seconds_count"), 5);
  EXPECT_DOUBLE_EQ(page.at("x_seconds_sum"), 3600.007);
}

TEST(PrometheusText, LabelsAndHelpAreEscaped) {
  PrometheusText text;
  text.Family("x", "gauge", "One\\two\nthree \"quoted\".");
  text.Sample({{"a", "q\"b\\n\n"}, {"c", ""}}, 1.5);
  EXPECT_EQ(text.Take(),
            "# HELP x One\\\\two\\nthree \"quoted\".\n# TYPE x gauge\nx{a=\"q\\\"b\\\\n\\n\",c=\"\"} 1.5\n");
}

TEST(MetricsText, HasTheEnginesCounters) {
  engine::EngineStats stats{.running = 3,
                            .waiting = 4,
                            .free_blocks = 10,
                            .cached_blocks = 20,
                            .total_blocks = 35,
                            .free_slots = 1,
                            .total_slots = 8,
                            .used_snapshots = 5,
                            .total_snapshots = 16,
                            .steps = 60,
                            .steps_by_mode = {.decode = 50, .tp = 4, .head = 3, .state = 2, .replicated = 1},
                            .planner = {.head = {3, 0.25}, .tp = {4, 0.5}, .state = {2, 0.125}},
                            .collectives = {11, 12, 13, 14, 15},
                            .prompt_tokens = 100,
                            .cached_tokens = 300,
                            .generated_tokens = 50,
                            .prefix_lookups = 9,
                            .prefix_hits = 6,
                            .evicted_blocks = 21,
                            .evicted_snapshots = 22,
                            .preemptions = 23,
                            .cancellations = 24};
  const MetricsPage page = ParseMetrics(MetricsText(Metrics(), stats));
  const std::pair<const char*, double> expected[] = {
      {"perigee_num_requests_running", 3},
      {"perigee_num_requests_waiting", 4},
      {"perigee_kv_pages{state=\"used\"}", 5},
      {"perigee_kv_pages{state=\"cached\"}", 20},
      {"perigee_kv_pages{state=\"free\"}", 10},
      {"perigee_state_slots{state=\"used\"}", 7},
      {"perigee_state_slots{state=\"free\"}", 1},
      {"perigee_state_snapshots{state=\"used\"}", 5},
      {"perigee_state_snapshots{state=\"free\"}", 11},
      {"perigee_prompt_tokens_total", 400},
      {"perigee_cached_tokens_total", 300},
      {"perigee_generation_tokens_total", 50},
      {"perigee_prefix_cache_queries_total", 9},
      {"perigee_prefix_cache_hits_total", 6},
      {"perigee_prefix_cache_evicted_pages_total", 21},
      {"perigee_prefix_cache_evicted_snapshots_total", 22},
      {"perigee_preemptions_total", 23},
      {"perigee_cancellations_total", 24},
      {"perigee_steps_total{mode=\"decode\"}", 50},
      {"perigee_steps_total{mode=\"tp\"}", 4},
      {"perigee_steps_total{mode=\"head\"}", 3},
      {"perigee_steps_total{mode=\"state\"}", 2},
      {"perigee_steps_total{mode=\"replicated\"}", 1},
      {"perigee_planner_choices_total{mode=\"head\"}", 3},
      {"perigee_planner_choices_total{mode=\"tp\"}", 4},
      {"perigee_planner_choices_total{mode=\"state\"}", 2},
      {"perigee_planner_estimated_seconds_total{mode=\"head\"}", 0.25},
      {"perigee_planner_estimated_seconds_total{mode=\"tp\"}", 0.5},
      {"perigee_planner_estimated_seconds_total{mode=\"state\"}", 0.125},
      {"perigee_collective_elements_total{collective=\"all_gather\",rank=\"0\"}", 11},
      {"perigee_collective_elements_total{collective=\"reduce_scatter\",rank=\"0\"}", 12},
      {"perigee_collective_elements_total{collective=\"all_reduce\",rank=\"0\"}", 13},
      {"perigee_collective_elements_total{collective=\"all_to_all\",rank=\"0\"}", 14},
      {"perigee_collective_elements_total{collective=\"broadcast\",rank=\"0\"}", 15},
  };
  for (const auto& [sample, value] : expected) EXPECT_EQ(page.at(sample), value) << sample;
}

class MetricsApi : public ApiTest {
 protected:
  MetricsPage Page() {
    const test::HttpReply reply = test::Get(port(), "/metrics");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    return ParseMetrics(reply.body);
  }
  static double Ended(const MetricsPage& page, std::string_view outcome) {
    return page.at(StrCat("perigee_requests_total{outcome=\"", outcome, "\"}"));
  }
};

TEST_F(MetricsApi, EveryRequestEndsOnce) {
  const Json body = {{"prompt", "a"}, {"max_tokens", 50}};
  PostOk("/v1/completions", body);
  PostStream("/v1/completions", body);
  PostError(400, "/v1/completions", {{"prompt", ""}});
  PostError(404, "/v1/completions", {{"prompt", "a"}, {"model", "other"}});
  {
    test::HttpConnection other_type(port());
    other_type.Send(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: "
        "2\r\n\r\n{}");
    EXPECT_EQ(other_type.Read().status, 400);
  }
  engine_->set_refusal(Unavailable("no"));
  PostError(503, "/v1/completions", body);
  engine_->set_refusal(Status::Ok());
  script_ = {.tokens = Ids("a"), .finish = engine::FinishReason::kError, .error = InternalError("broken")};
  PostError(500, "/v1/completions", body);

  script_ = {.tokens = Ids("a"), .finish = engine::FinishReason::kNone};
  engine_->set_step_time(milliseconds(1));
  {
    test::HttpConnection gone(port());
    gone.Send(test::PostText("/v1/completions", R"({"prompt":"a","max_tokens":4000,"stream":true})"));
    ASSERT_TRUE(gone.ReadUntil("data: "));
  }
  // Counted once the engine has let go of it.
  while (Ended(Page(), "cancelled") < 1) std::this_thread::sleep_for(milliseconds(5));

  // What generates nothing is not counted.
  PostOk("/flush_cache", Json::object());
  test::Get(port(), "/nowhere");
  const MetricsPage page = Page();
  EXPECT_EQ(Ended(page, "finished"), 2);
  EXPECT_EQ(Ended(page, "refused"), 3);
  EXPECT_EQ(Ended(page, "failed"), 2);
  EXPECT_EQ(Ended(page, "cancelled"), 1);
  EXPECT_EQ(page.at("perigee_e2e_request_latency_seconds_count"), 2);
}

TEST_F(MetricsApi, LatenciesAreThoseOfTokens) {
  Answer("abcdefgh");
  const auto ids = static_cast<double>(script_.tokens.size());
  engine_->set_step_time(milliseconds(3));
  PostOk("/v1/completions", {{"prompt", "a"}, {"n", 2}});
  const MetricsPage page = Page();
  EXPECT_EQ(page.at("perigee_time_to_first_token_seconds_count"), 2);
  // Every token but an answer's first; the stop id is one.
  EXPECT_EQ(page.at("perigee_inter_token_latency_seconds_count"), 2 * ids);
  // How long is a matter of when the delivery thread runs.
  EXPECT_GT(page.at("perigee_inter_token_latency_seconds_sum"), 0);
  EXPECT_EQ(page.at("perigee_e2e_request_latency_seconds_count"), 1);
  // One answer's first token and the tokens after it take no longer than the whole request.
  EXPECT_LE(
      page.at("perigee_time_to_first_token_seconds_sum") + page.at("perigee_inter_token_latency_seconds_sum"),
      2 * page.at("perigee_e2e_request_latency_seconds_sum"));
}

TEST_F(MetricsApi, SeveralTokensOfADeliveryShareItsTime) {
  script_ = {.tokens = Ids("abcdefghijklmnop"), .tokens_per_delivery = 4};
  const auto ids = static_cast<double>(script_.tokens.size());
  PostOk("/generate", {{"text", "a"}});
  const MetricsPage page = Page();
  EXPECT_EQ(page.at("perigee_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(page.at("perigee_inter_token_latency_seconds_count"), ids - 4);
}

}  // namespace
}  // namespace perigee::server
