#pragma once

#include <atomic>
#include <cstdint>

namespace perigee::comm {

// A meeting of a fixed number of threads, used again and again. A waiting thread looks for some microseconds,
// then sleeps. What a thread wrote before it arrived is visible to all that have met.
class Barrier {
 public:
  explicit Barrier(int num_threads);

  // Waits until every thread has arrived: true, for all of them or for none. False once broken.
  bool ArriveAndWait();
  // Meetings that are not complete by now never will be: their threads return false, and so do later calls.
  // Any thread may call it.
  void Break();

 private:
  bool Wait(uint32_t arrived_in);

  const int num_threads_;
  std::atomic<int> arrived_{0};
  // Twice the number of complete meetings, plus 1 when broken: completion and breaking exclude each other.
  alignas(64) std::atomic<uint32_t> state_{0};
};

}  // namespace perigee::comm
