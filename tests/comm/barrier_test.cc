#include "comm/barrier.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace perigee::comm {
namespace {

TEST(Barrier, NobodyGoesBeforeAllHaveCome) {
  constexpr int kThreads = 5;
  constexpr int kRounds = 500;
  Barrier barrier(kThreads);
  std::array<int, kThreads> rounds{};  // plain: the barrier alone must order the accesses
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 1; round <= kRounds; ++round) {
        rounds[t] = round;
        ASSERT_TRUE(barrier.ArriveAndWait());
        for (const int other : rounds) ASSERT_EQ(other, round);
        ASSERT_TRUE(barrier.ArriveAndWait());
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Barrier, OneThreadMeetsItselfUntilBroken) {
  Barrier barrier(1);
  EXPECT_TRUE(barrier.ArriveAndWait());
  EXPECT_TRUE(barrier.ArriveAndWait());
  barrier.Break();
  EXPECT_FALSE(barrier.ArriveAndWait());
  barrier.Break();
  EXPECT_FALSE(barrier.ArriveAndWait());
}

// Broken at any moment, a meeting is complete for all or for none.
TEST(Barrier, BreakingAndCompletingExcludeEachOther) {
  for (int repeat = 0; repeat < 3000; ++repeat) {
    Barrier barrier(2);
    std::array<int, 2> met{};
    std::atomic<int> started{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        ++started;
        while (barrier.ArriveAndWait()) ++met[t];
      });
    }
    while (started.load() < 2) std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(repeat % 500 * 4);
    while (std::chrono::steady_clock::now() < until) {
    }
    barrier.Break();
    for (std::thread& t : threads) t.join();
    ASSERT_EQ(met[0], met[1]) << "repeat " << repeat;
  }
}

}  // namespace
}  // namespace perigee::comm
