#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "server/api_error.h"
#include "server/http.h"
#include "server/serving_context.h"

namespace perigee::server {

// GET /health_generate: one token through the whole engine, in the queue with everybody else's. Every probe
// is answered: when its token comes (200), when the engine refuses or fails it, or when its time is over
// (503). Thread-safe. Shared with the engine's callbacks.
class HealthProbes : public std::enable_shared_from_this<HealthProbes> {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HealthProbes(std::chrono::milliseconds limit) : limit_(limit) {}

  void Start(const ServingContext& context, std::shared_ptr<ResponseWriter> writer, Clock::time_point now);
  // Answers those whose time is over, and takes their requests back. To be called now and then.
  void Expire(engine::Engine& engine, Clock::time_point now);

 private:
  struct Probe {
    std::shared_ptr<ResponseWriter> writer;
    Clock::time_point deadline;
    engine::RequestId request = 0;  // 0: not known yet
  };

  void OnOutput(uint64_t number, const engine::Output& output);
  // The probe's writer, once; null afterwards.
  std::shared_ptr<ResponseWriter> Take(uint64_t number);

  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<uint64_t, Probe> waiting_;
};

}  // namespace perigee::server
