#include "server/health.h"

namespace perigee::server {

void HealthMonitor::Observe(const engine::EngineStats& stats, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  bool busy = stats.running + stats.waiting > 0;
  if (!busy || !busy_ || stats.steps != steps_) last_progress_ = now;
  busy_ = busy;
  steps_ = stats.steps;
  failed_ = stats.failed;
}

bool HealthMonitor::Healthy(Clock::time_point now) const {
  std::lock_guard lock(mutex_);
  if (failed_) return false;
  return !busy_ || now - last_progress_ <= stall_limit_;
}

}  // namespace perigee::server
