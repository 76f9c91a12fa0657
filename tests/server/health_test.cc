#include "server/health.h"

#include <gtest/gtest.h>

namespace perigee::server {
namespace {

using std::chrono::seconds;

bool Healthy(const HealthMonitor& monitor, HealthMonitor::Clock::time_point now) {
  return monitor.Check(now).ok();
}

TEST(Health, IdleIsHealthyForEver) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  EXPECT_TRUE(Healthy(monitor, t0));
  monitor.Observe({.steps = 5}, t0);
  EXPECT_TRUE(Healthy(monitor, t0 + seconds(1000)));
}

TEST(Health, BusyWithoutStepsFailsAfterTheLimitAndRecovers) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  monitor.Observe({.running = 1, .steps = 5}, t0);
  monitor.Observe({.running = 1, .steps = 5}, t0 + seconds(9));
  EXPECT_TRUE(Healthy(monitor, t0 + seconds(10)));
  monitor.Observe({.running = 1, .steps = 5}, t0 + seconds(11));
  EXPECT_FALSE(Healthy(monitor, t0 + seconds(11)));
  monitor.Observe({.running = 1, .steps = 6}, t0 + seconds(12));
  EXPECT_TRUE(Healthy(monitor, t0 + seconds(12)));
}

TEST(Health, ALongBusyTimeWithStepsIsHealthy) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point now{};
  for (uint64_t step = 0; step < 100; ++step, now += seconds(9)) {
    monitor.Observe({.waiting = 3, .steps = step}, now);
    EXPECT_TRUE(Healthy(monitor, now + seconds(9)));
  }
}

TEST(Health, WorkThatJustBeganIsNotMistakenForAStall) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  monitor.Observe({.steps = 5}, t0);
  monitor.Observe({.running = 1, .steps = 5}, t0 + seconds(100));
  EXPECT_TRUE(Healthy(monitor, t0 + seconds(101)));
}

// A step over many rows may take longer than the limit.
TEST(Health, KernelsThatGetOnAreProgress) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point now{};
  for (uint64_t work = 0; work < 10; ++work, now += seconds(9)) {
    monitor.Observe({.running = 1, .steps = 5, .work_begun = work}, now);
    EXPECT_TRUE(Healthy(monitor, now + seconds(9)));
  }
  EXPECT_FALSE(Healthy(monitor, now + seconds(9)));
}

TEST(Health, SaysWhatIsWrong) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  monitor.Observe({.running = 2, .waiting = 3, .steps = 5}, t0);
  EXPECT_EQ(monitor.Check(t0 + seconds(12)).message(),
            "no progress for 12 s with 2 requests running and 3 waiting");
  monitor.Observe({.failure = "rank 2 is gone"}, t0);
  EXPECT_EQ(monitor.Check(t0).message(), "nothing is computed any more: rank 2 is gone");
}

}  // namespace
}  // namespace perigee::server
