#include "server/health.h"

#include <gtest/gtest.h>

namespace perigee::server {
namespace {

using std::chrono::seconds;

TEST(Health, IdleIsHealthyForEver) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  EXPECT_TRUE(monitor.Healthy(t0));
  monitor.Observe({.steps = 5}, t0);
  EXPECT_TRUE(monitor.Healthy(t0 + seconds(1000)));
}

TEST(Health, BusyWithoutStepsFailsAfterTheLimitAndRecovers) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  monitor.Observe({.running = 1, .steps = 5}, t0);
  monitor.Observe({.running = 1, .steps = 5}, t0 + seconds(9));
  EXPECT_TRUE(monitor.Healthy(t0 + seconds(10)));
  monitor.Observe({.running = 1, .steps = 5}, t0 + seconds(11));
  EXPECT_FALSE(monitor.Healthy(t0 + seconds(11)));
  monitor.Observe({.running = 1, .steps = 6}, t0 + seconds(12));
  EXPECT_TRUE(monitor.Healthy(t0 + seconds(12)));
}

TEST(Health, ALongBusyTimeWithStepsIsHealthy) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point now{};
  for (uint64_t step = 0; step < 100; ++step, now += seconds(9)) {
    monitor.Observe({.waiting = 3, .steps = step}, now);
    EXPECT_TRUE(monitor.Healthy(now + seconds(9)));
  }
}

TEST(Health, WorkThatJustBeganIsNotMistakenForAStall) {
  HealthMonitor monitor(seconds(10));
  HealthMonitor::Clock::time_point t0{};
  monitor.Observe({.steps = 5}, t0);
  monitor.Observe({.running = 1, .steps = 5}, t0 + seconds(100));
  EXPECT_TRUE(monitor.Healthy(t0 + seconds(101)));
}

}  // namespace
}  // namespace perigee::server
