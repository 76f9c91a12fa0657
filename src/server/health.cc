#include "server/health.h"

#include "base/strings.h"

namespace perigee::server {

void HealthMonitor::Observe(const engine::EngineStats& stats, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const bool was_busy = running_ + waiting_ > 0;
  const bool is_busy = stats.running + stats.waiting > 0;
  const bool advanced = stats.steps != steps_ || stats.work_begun != work_begun_;
  if (!was_busy || !is_busy || advanced) last_progress_ = now;
  steps_ = stats.steps;
  work_begun_ = stats.work_begun;
  running_ = stats.running;
  waiting_ = stats.waiting;
  failure_ = stats.failure;
}

Status HealthMonitor::Check(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return Unavailable(StrCat("nothing is computed any more: ", failure_));
  const std::chrono::duration<double> still = now - last_progress_;
  if (running_ + waiting_ == 0 || still <= stall_limit_) return Status::Ok();
  return Unavailable(StrCat("no progress for ", static_cast<int64_t>(still.count()), " s with ", running_,
                            " requests running and ", waiting_, " waiting"));
}

}  // namespace perigee::server
