#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace perigee::comm {

// For waiting on something that can only be looked at: some microseconds of looking, then sleeps that grow
// with the time waited, so that a short wait stays short and a long one costs no processor time.
class Backoff {
 public:
  void Wait() {
    const auto waited = Clock::now() - start_;
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / 8, kLongestSleep));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{20};
  static constexpr std::chrono::milliseconds kLongestSleep{4};

  Clock::time_point start_ = Clock::now();
};

}  // namespace perigee::comm
