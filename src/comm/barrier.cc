#include "comm/barrier.h"

#include <chrono>
#include <thread>

#include "base/check.h"

namespace perigee::comm {
namespace {

constexpr uint32_t kBroken = 1;
constexpr std::chrono::microseconds kMaxSpin{20};

}  // namespace

Barrier::Barrier(int num_threads) : num_threads_(num_threads) {
  PERIGEE_CHECK(num_threads >= 1);
}

bool Barrier::ArriveAndWait() {
  uint32_t state = state_.load();  // cannot complete without this thread
  if ((state & kBroken) != 0) return false;
  if (arrived_.fetch_add(1) + 1 < num_threads_) return Wait(state);
  arrived_.store(0);
  if (!state_.compare_exchange_strong(state, state + 2)) return false;
  state_.notify_all();
  return true;
}

bool Barrier::Wait(uint32_t arrived_in) {
  // Yielding lets the others run first when there are more ranks than cores; with cores to spare it is a
  // spin.
  const auto deadline = std::chrono::steady_clock::now() + kMaxSpin;
  while (state_.load() == arrived_in && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  state_.wait(arrived_in);
  return state_.load() >> 1 != arrived_in >> 1;
}

void Barrier::Break() {
  state_.fetch_or(kBroken);
  state_.notify_all();
}

}  // namespace perigee::comm
