#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "server/prometheus_text.h"

namespace perigee::server {

// Seconds, in buckets that suit both a decode step and a long prompt. Thread-safe.
class LatencyHistogram {
 public:
  static constexpr std::array<double, 18> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,    5,     10,   30,    60,   120, 300,  600};

  // `count` observations of the same value.
  void Observe(std::chrono::duration<double> value, uint64_t count = 1);
  // Buckets (cumulative), sum and count of a family that has begun.
  void Write(PrometheusText& text) const;

 private:
  mutable std::mutex mutex_;
  std::array<uint64_t, kBounds.size() + 1> buckets_{};  // each alone; the last has what is beyond
  double sum_ = 0;
};

// How a request of a generating endpoint ended, each once.
enum class RequestEnd : uint8_t {
  kFinished,   // a whole answer
  kRefused,    // a status of the 400s
  kFailed,     // a status of the 500s, or an error in a stream
  kCancelled,  // the client went away
};
inline constexpr size_t kNumRequestEnds = 4;

// What the server itself measures; the engine's counters are read when somebody asks for the page. Times are
// those of the delivery thread, which alone observes tokens, so that its lock is free but for a page now and
// then. Thread-safe.
class Metrics {
 public:
  LatencyHistogram time_to_first_token;  // from the request's arrival, each answer
  LatencyHistogram inter_token;          // between two tokens of an answer; several at once share their time
  LatencyHistogram end_to_end;           // of a request that finished, from its arrival

  void CountEnd(RequestEnd end);
  std::array<uint64_t, kNumRequestEnds> ends() const;

 private:
  mutable std::mutex mutex_;
  std::array<uint64_t, kNumRequestEnds> ends_{};
};

// The whole page of GET /metrics.
std::string MetricsText(const Metrics& metrics, const engine::EngineStats& stats);

}  // namespace perigee::server
