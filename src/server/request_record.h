#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/metrics.h"

namespace perigee::server {

// One request of a generating endpoint from its arrival to its end, as /metrics and the log know it. Its
// first end counts, once; a request that is dropped without one had lost its client. Thread-safe.
class RequestRecord {
 public:
  using Clock = std::chrono::steady_clock;

  // `name` is for the log: "POST /generate".
  RequestRecord(std::shared_ptr<Metrics> metrics, std::string name, Clock::time_point arrived);
  ~RequestRecord();
  RequestRecord(const RequestRecord&) = delete;
  RequestRecord& operator=(const RequestRecord&) = delete;

  void Finish();
  // Refused or failed, by the status.
  void Fail(const ApiError& error);

  Clock::time_point arrived() const { return arrived_; }
  Metrics& metrics() const { return *metrics_; }

 private:
  void End(RequestEnd end);

  const std::shared_ptr<Metrics> metrics_;
  const std::string name_;
  const Clock::time_point arrived_;
  std::atomic<bool> ended_{false};
};

// One line: a refusal at info, a failure of ours as a warning.
void LogApiError(std::string_view name, const ApiError& error);

}  // namespace perigee::server
