#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace perigee::comm {

// What a rank is doing, as it tells the others.
enum class Activity : uint8_t {
  kIdle,       // no step is on
  kComputing,  // in a step, between collectives
  kWaiting,    // in a collective
};

struct Pulse {
  Activity activity = Activity::kIdle;
  uint64_t collectives = 0;  // passed since the start: several for every layer of a step
  uint64_t work = 0;         // of the present step's kernels, in pieces that take well below a second
};

// Tells a rank that has died without closing its sockets, or that was stopped, or a step in which nobody gets
// on, from ranks that work. Pure: the caller brings pulses and the time. One thread.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  struct Verdict {
    int rank = 0;  // who is to blame, as far as can be seen
    std::string reason;
  };

  // Nothing is forgiven for longer than `timeout`, counted from what happened and not from when it was seen.
  Liveness(int rank, int size, std::chrono::milliseconds timeout, Clock::time_point now);

  // How often ranks are to send their pulse and to call Check.
  static std::chrono::milliseconds Period(std::chrono::milliseconds timeout);

  // A pulse of a rank, the own one too.
  void Observe(int rank, const Pulse& pulse, Clock::time_point now);
  // A rank that has said goodbye is not watched any more.
  void Forget(int rank);
  // The first fault, if there is one now. Call it once a period: after a longer pause this process was
  // stopped itself, and everybody gets another chance.
  std::optional<Verdict> Check(Clock::time_point now);

 private:
  struct Seen {
    Pulse pulse;
    Clock::time_point heard;     // last pulse
    Clock::time_point advanced;  // last change of what it said
    bool watched = true;
  };

  std::optional<Verdict> Silence(Clock::time_point now) const;
  std::optional<Verdict> Stall(Clock::time_point now) const;

  const size_t rank_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds period_;
  std::vector<Seen> seen_;
  Clock::time_point last_check_;
};

}  // namespace perigee::comm
