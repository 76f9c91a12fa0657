// Clients that go away at random moments, in every stage of a request, leave nothing behind.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "e2e/process.h"
#include "testing/http_connection.h"
#include "testing/prometheus.h"

namespace perigee::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kConnections = 1000;
constexpr int kClients = 8;

using Random = std::mt19937;

int Uniform(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// Prompts share documents, so that the cache is used; some take several chunks.
std::string RandomBody(Random& random) {
  std::string prompt;
  const int document = Uniform(random, 0, 3);
  const int sentences = Uniform(random, 0, 120);
  for (int i = 0; i < sentences; ++i) {
    prompt += "Sentence " + std::to_string(i) + " of document " + std::to_string(document) + ". ";
  }
  prompt += "Question " + std::to_string(Uniform(random, 0, 1000)) + ":";
  return R"({"prompt":")" + prompt + R"(","max_tokens":)" + std::to_string(Uniform(random, 1, 120)) +
         R"(,"n":)" + std::to_string(Uniform(random, 1, 3)) + R"(,"ignore_eos":true,"stream":)" +
         (Uniform(random, 0, 1) == 0 ? "true" : "false") + "}";
}

void AskAndLeave(int port, Random& random) {
  const std::string request = test::PostText("/v1/completions", RandomBody(random));
  test::HttpConnection connection(port);
  ASSERT_TRUE(connection.connected());
  switch (Uniform(random, 0, 5)) {
    case 0:  // within the request
      connection.Send(request.substr(0, static_cast<size_t>(Uniform(random, 0, 200))));
      return;
    case 1:  // at once
      connection.Send(request);
      return;
    case 2:  // a little later: in the queue, in the prompt, in the answer
    case 3:
      connection.Send(request);
      std::this_thread::sleep_for(milliseconds(Uniform(random, 0, 60)));
      return;
    case 4:  // with the first bytes of an answer
      connection.Send(request);
      connection.ReadUntil("\r\n\r\n");
      return;
    default:  // only its sending side
      connection.Send(request);
      std::this_thread::sleep_for(milliseconds(Uniform(random, 0, 20)));
      connection.ShutdownSend();
      EXPECT_TRUE(connection.WaitClosed());
  }
}

TEST(Disconnects, AThousandLeaveNothingBehind) {
  Process server({PERIGEE_PROGRAM, "serve", "--model-path", PERIGEE_MODELS "/tiny-kimi-linear", "--port", "0",
                  "--context-length", "4096", "--max-total-tokens", "4096", "--max-running-requests", "8",
                  "--chunked-prefill-size", "256", "--log-level", "warning"});
  const std::string line = server.WaitForLine("perigee is listening on ");
  ASSERT_FALSE(line.empty()) << server.err();
  const int port = std::stoi(line.substr(line.rfind(':') + 1));
  const auto page = [&] { return test::ParseMetrics(test::Get(port, "/metrics").body); };
  const std::string hello = R"({"prompt":"The quiet river follows","max_tokens":40,"temperature":0})";
  const auto text = [&] {
    const std::string body = test::Post(port, "/v1/completions", hello).body;
    const size_t at = body.find("\"text\":");
    return body.substr(at, body.find("\"logprobs\"") - at);
  };
  const std::string before = text();
  const test::MetricsPage start = page();
  const double pages = start.at("perigee_kv_pages{state=\"free\"}");
  const double slots = start.at("perigee_state_slots{state=\"free\"}");
  EXPECT_EQ(pages, 4096 / 64);
  EXPECT_EQ(slots, 8);

  std::atomic<int> left{kConnections};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      Random random(static_cast<unsigned>(100 + c));
      while (left-- > 0) AskAndLeave(port, random);
    });
  }
  for (std::thread& client : clients) client.join();

  test::MetricsPage end = page();
  const auto patience = std::chrono::steady_clock::now() + seconds(60);
  while (end.at("perigee_num_requests_running") + end.at("perigee_num_requests_waiting") > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), patience) << "work goes on for nobody";
    std::this_thread::sleep_for(milliseconds(20));
    end = page();
  }
  EXPECT_EQ(end.at("perigee_kv_pages{state=\"used\"}"), 0);
  EXPECT_EQ(end.at("perigee_kv_pages{state=\"free\"}") + end.at("perigee_kv_pages{state=\"cached\"}"), pages);
  EXPECT_EQ(end.at("perigee_state_slots{state=\"free\"}"), slots);
  EXPECT_EQ(end.at("perigee_requests_total{outcome=\"failed\"}"), 0);
  EXPECT_EQ(end.at("perigee_requests_total{outcome=\"refused\"}"), 0);
  // The run was what it is meant to be.
  EXPECT_GT(end.at("perigee_kv_pages{state=\"cached\"}"), 0);
  EXPECT_GT(end.at("perigee_cached_tokens_total"), 0);
  EXPECT_GT(end.at("perigee_requests_total{outcome=\"cancelled\"}"), kConnections / 4.0);
  EXPECT_GT(end.at("perigee_cancellations_total"), 0);
  std::printf("%.0f requests cancelled, %.0f finished; %.0f preemptions, %.0f sequences cancelled\n",
              end.at("perigee_requests_total{outcome=\"cancelled\"}"),
              end.at("perigee_requests_total{outcome=\"finished\"}"), end.at("perigee_preemptions_total"),
              end.at("perigee_cancellations_total"));

  // A connection that closed last may be noticed after the others are over.
  test::MetricsPage flushed;
  for (int tries = 0; tries < 300; ++tries) {
    EXPECT_EQ(test::Post(port, "/flush_cache", "").status, 200);
    flushed = page();
    if (flushed.at("perigee_kv_pages{state=\"free\"}") == pages) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(flushed.at("perigee_kv_pages{state=\"free\"}"), pages);
  EXPECT_EQ(flushed.at("perigee_state_slots{state=\"free\"}"), slots);
  EXPECT_EQ(flushed.at("perigee_state_snapshots{state=\"used\"}"), 0);
  EXPECT_EQ(text(), before) << "the next request is unaffected";
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
}

}  // namespace
}  // namespace perigee::testing
