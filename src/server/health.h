#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/status.h"
#include "engine/engine.h"

namespace perigee::server {

// Tells a busy engine from a stuck one by what it gets done: idle is healthy, and so is busy while steps are
// made or, within a long one, kernels get on; busy without either for longer than the limit is not, nor is an
// engine whose ranks have failed. Fed with samples, so that rare probes of /health see the truth.
class HealthMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HealthMonitor(std::chrono::milliseconds stall_limit) : stall_limit_(stall_limit) {}

  void Observe(const engine::EngineStats& stats, Clock::time_point now);
  // Ok, or kUnavailable with the reason.
  Status Check(Clock::time_point now) const;

 private:
  const std::chrono::milliseconds stall_limit_;
  mutable std::mutex mutex_;
  uint64_t steps_ = 0;
  uint64_t work_begun_ = 0;
  int64_t running_ = 0;
  int64_t waiting_ = 0;
  std::string failure_;
  Clock::time_point last_progress_{};  // last sample that was idle or had something new
};

}  // namespace perigee::server
