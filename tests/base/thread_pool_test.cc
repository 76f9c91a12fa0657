#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace perigee {
namespace {

const std::vector<int> kSizes = {1, 2, 3, 8};

TEST(ThreadPool, EveryItemExactlyOnce) {
  for (const int size : kSizes) {
    ThreadPool pool(size);
    EXPECT_EQ(pool.size(), size);
    for (const int64_t n : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      pool.ParallelFor(n, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      for (const std::atomic<int>& r : runs) ASSERT_EQ(r, 1) << size << " threads, " << n << " items";
    }
  }
}

// Rounds follow each other closely, most of them too short for a worker to wake up in time.
// Whoever watches a kernel sees it get on.
TEST(ThreadPool, CountsThePiecesOfWorkAsTheyBegin) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.items_begun(), 0u);
    pool.ParallelFor(10, [](int64_t) {});
    EXPECT_EQ(pool.items_begun(), 10u);
    pool.ParallelFor(1, [&](int64_t) { EXPECT_EQ(pool.items_begun(), 11u); });
  }
}

TEST(ThreadPool, ManyShortRounds) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(4);
  for (int64_t round = 0; round < 20000; ++round) {
    pool.ParallelFor(4, [&](int64_t i) { sums[static_cast<size_t>(i)] += round; });
  }
  EXPECT_EQ(sums, std::vector<int64_t>(4, int64_t{20000} * 19999 / 2));
}

TEST(ThreadPool, RangesCoverAndRespectTheGrain) {
  for (const int size : kSizes) {
    ThreadPool pool(size);
    for (const int64_t n : {0, 1, 5, 16, 17, 100, 1001}) {
      for (const int64_t grain : {0, 1, 4, 16, 5000}) {
        std::mutex mutex;
        std::set<std::pair<int64_t, int64_t>> ranges;
        pool.ParallelRanges(n, grain, [&](int64_t begin, int64_t end) {
          const std::lock_guard lock(mutex);
          ranges.emplace(begin, end);
        });
        int64_t covered = 0;
        for (const auto& [begin, end] : ranges) {
          EXPECT_EQ(begin, covered);
          EXPECT_LT(begin, end);
          if (end < n) {
            EXPECT_GE(end - begin, grain);
          }
          covered = end;
        }
        EXPECT_EQ(covered, n);
        EXPECT_LE(static_cast<int>(ranges.size()), size);
        if (n > 0 && n < 2 * grain) {
          EXPECT_EQ(ranges.size(), 1u);
        }
      }
    }
  }
}

TEST(ThreadPool, SmallRangesStayOnTheCaller) {
  ThreadPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelRanges(100, 51, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(2);
  // Each of two items waits for the other to be running: only two threads get through.
  std::atomic<int> running = 0;
  pool.ParallelFor(2, [&](int64_t) {
    ++running;
    while (running < 2) std::this_thread::yield();
  });
  EXPECT_EQ(running, 2);
}

TEST(ThreadPool, NestedCallsRunSerially) {
  ThreadPool pool(3);
  ThreadPool other(2);
  std::vector<std::atomic<int>> runs(60);
  pool.ParallelFor(6, [&](int64_t i) {
    const std::thread::id outer = std::this_thread::get_id();
    ThreadPool& inner = i % 2 == 0 ? pool : other;
    inner.ParallelFor(10, [&](int64_t j) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++runs[static_cast<size_t>(i * 10 + j)];
    });
  });
  for (const std::atomic<int>& r : runs) EXPECT_EQ(r, 1);
  // And the pool is whole again afterwards.
  std::atomic<int> count = 0;
  pool.ParallelFor(50, [&](int64_t) { ++count; });
  EXPECT_EQ(count, 50);
}

// Ranks as threads of one process: each has its own pool and they do not disturb each other.
TEST(ThreadPool, SeveralPoolsAtOnce) {
  std::vector<std::thread> ranks;
  std::vector<int64_t> sums(4);
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadPool pool(1 + static_cast<int>(rank));
      for (int round = 0; round < 300; ++round) {
        std::vector<int64_t> out(64);
        pool.ParallelFor(64, [&](int64_t i) { out[static_cast<size_t>(i)] = i + round; });
        for (const int64_t x : out) sums[rank] += x;
      }
    });
  }
  for (std::thread& t : ranks) t.join();
  EXPECT_EQ(sums, std::vector<int64_t>(4, int64_t{300} * (63 * 64 / 2) + int64_t{64} * (299 * 300 / 2)));
}

TEST(ThreadPool, CreatedAndDestroyedIdle) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3);
}

#if defined(__SSE__)
bool DenormalsSurvive() {
  volatile float smallest = std::numeric_limits<float>::min();
  volatile float half = smallest * 0.5f;
  return half != 0;
}

TEST(ThreadPool, DenormalsAreFlushedOnEveryThreadAndOnlyInside) {
  ASSERT_TRUE(DenormalsSurvive());
  for (const int size : {1, 3}) {
    ThreadPool pool(size);
    std::atomic<int> kept = 0;
    pool.ParallelFor(64, [&](int64_t) { kept += DenormalsSurvive() ? 1 : 0; });
    EXPECT_EQ(kept, 0);
    EXPECT_TRUE(DenormalsSurvive());
  }
}
#endif

TEST(ThreadPoolDeathTest, NeedsAThread) {
  EXPECT_DEATH(ThreadPool(0), "num_threads");
}

}  // namespace
}  // namespace perigee
