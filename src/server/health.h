#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "engine/engine.h"

namespace perigee::server {

// Tells a busy engine from a stuck one by its step counter: idle or advancing is healthy, busy without a step
// for longer than the limit is not, nor one whose ranks failed. Fed with samples, so that rare probes of
// /health see the truth.
class HealthMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HealthMonitor(std::chrono::milliseconds stall_limit) : stall_limit_(stall_limit) {}

  void Observe(const engine::EngineStats& stats, Clock::time_point now);
  bool Healthy(Clock::time_point now) const;

 private:
  const std::chrono::milliseconds stall_limit_;
  mutable std::mutex mutex_;
  uint64_t steps_ = 0;
  bool busy_ = false;
  bool failed_ = false;
  Clock::time_point last_progress_{};  // last sample that was idle or had new steps
};

}  // namespace perigee::server
