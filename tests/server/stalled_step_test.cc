// The real step loop under the server, with a switch that stalls a step on purpose.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/engine_testing.h"
#include "engine/rank_team.h"
#include "engine/worker.h"
#include "server/api_fixture.h"
#include "testing/fake_model.h"
#include "testing/prometheus.h"

namespace perigee::server {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Stalls steps before they compute, for as long as it is held.
class Gate {
 public:
  void Hold(bool hold) {
    {
      const std::lock_guard lock(mutex_);
      held_ = hold;
    }
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
    waiting_ = false;
  }
  // Until a step stands there.
  void AwaitStall() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_ && waiting_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  bool waiting_ = false;
};

class GatedTeam : public engine::RankTeam {
 public:
  GatedTeam(std::vector<std::unique_ptr<engine::Worker>> workers, Gate* gate)
      : RankTeam(std::move(workers)), gate_(gate) {}

  StatusOr<std::vector<engine::SpanResult>> Run(const batch::BatchPlan& plan,
                                                const engine::Sampler& sampler) override {
    gate_->Pass();
    return RankTeam::Run(plan, sampler);
  }

 private:
  Gate* const gate_;
};

class StalledStep : public ::testing::Test {
 protected:
  static constexpr milliseconds kLimit{2000};  // a token comes within it on a loaded machine too

  StalledStep() {
    const engine::EngineConfig config = engine::FakeConfig();
    std::vector<std::unique_ptr<engine::Worker>> workers;
    workers.push_back(std::make_unique<engine::Worker>(
        std::make_unique<FakeModel>(), engine::WorkerConfig{.num_blocks = config.max_total_tokens / 64,
                                                            .num_slots = engine::NumStateSlots(config)}));
    engine_ = engine::MakeEngine(std::make_unique<GatedTeam>(std::move(workers), &gate_), config, {},
                                 batch::StepMode::kTp, {});
    server_ = std::move(Server::Start({.port = 0, .stall_limit = kLimit}).value());
    EXPECT_TRUE(server_->SetReady(engine_.get(), &TinyTokenizer()).ok());
  }
  ~StalledStep() override { gate_.Hold(false); }

  test::HttpReply Health() { return test::Get(server_->port(), "/health"); }
  // It never has any status but these two.
  void AwaitHealth(int status) {
    const Clock::time_point patience = Clock::now() + seconds(60);
    for (int got = 0; got != status; std::this_thread::sleep_for(milliseconds(10))) {
      got = Health().status;
      EXPECT_TRUE(got == 200 || got == 503);
      ASSERT_LT(Clock::now(), patience) << "/health never was " << status;
    }
  }

  Gate gate_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(StalledStep, HealthFailsWithinTheTimeoutAndComesBack) {
  const std::string prompt = R"({"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":20}})";
  EXPECT_EQ(test::Post(server_->port(), "/generate", prompt).status, 200);
  EXPECT_EQ(Health().status, 200);

  gate_.Hold(true);
  test::HttpConnection stuck(server_->port());
  stuck.Send(test::PostText("/generate", prompt));
  gate_.AwaitStall();
  AwaitHealth(503);
  EXPECT_NE(Health().body.find("no progress for"), std::string::npos) << Health().body;
  // The other pages still answer.
  const test::MetricsPage page = test::ParseMetrics(test::Get(server_->port(), "/metrics").body);
  EXPECT_EQ(page.at("perigee_num_requests_running") + page.at("perigee_num_requests_waiting"), 1);

  gate_.Hold(false);
  EXPECT_EQ(stuck.Read().status, 200);
  AwaitHealth(200);
  EXPECT_EQ(test::Post(server_->port(), "/generate", prompt).status, 200);
}

TEST_F(StalledStep, ATokenThatDoesNotComeFailsTheProbe) {
  EXPECT_EQ(test::Get(server_->port(), "/health_generate").status, 200);
  gate_.Hold(true);
  const test::HttpReply late = test::Get(server_->port(), "/health_generate");
  EXPECT_EQ(late.status, 503);
  EXPECT_NE(late.body.find("no token came"), std::string::npos);
  gate_.Hold(false);
  EXPECT_EQ(test::Get(server_->port(), "/health_generate").status, 200);
}

// Clients need not wait for the step to learn that the server stops.
TEST_F(StalledStep, StoppingInAStallAnswersClients) {
  gate_.Hold(true);
  test::HttpConnection stuck(server_->port());
  stuck.Send(test::PostText("/generate", R"({"input_ids":[1,2,3]})"));
  gate_.AwaitStall();
  EXPECT_EQ(server_->Stop(milliseconds(10)), 1u);
  EXPECT_EQ(stuck.Read().status, 503);
}

}  // namespace
}  // namespace perigee::server
