#include "base/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace perigee {
namespace {

TEST(BlockingQueue, FirstInFirstOut) {
  BlockingQueue<int> queue;
  EXPECT_EQ(queue.TryPop(), std::nullopt);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BlockingQueue, MoveOnlyItems) {
  BlockingQueue<std::unique_ptr<int>> queue;
  EXPECT_TRUE(queue.Push(std::make_unique<int>(5)));
  EXPECT_EQ(**queue.Pop(), 5);
}

TEST(BlockingQueue, CloseHandsOutTheRestAndRefusesMore) {
  BlockingQueue<int> queue;
  EXPECT_TRUE(queue.Push(1));
  queue.Close();
  EXPECT_FALSE(queue.Push(2));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
  queue.Close();  // once more is no error
}

TEST(BlockingQueue, CloseWakesEveryWaiter) {
  BlockingQueue<int> queue;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { EXPECT_EQ(queue.Pop(), std::nullopt); });
  }
  queue.Close();
  for (std::thread& t : waiters) t.join();
}

TEST(BlockingQueue, ManyThreadsLoseNothing) {
  constexpr int kThreads = 3, kItems = 2000;
  BlockingQueue<int> queue;
  std::vector<std::vector<int>> taken(kThreads);
  std::vector<std::thread> consumers, producers;
  for (int c = 0; c < kThreads; ++c) {
    consumers.emplace_back([&, c] {
      while (const std::optional<int> item = queue.Pop()) taken[static_cast<size_t>(c)].push_back(*item);
    });
  }
  for (int p = 0; p < kThreads; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kItems; ++i) EXPECT_TRUE(queue.Push(p * kItems + i));
    });
  }
  for (std::thread& t : producers) t.join();
  queue.Close();
  for (std::thread& t : consumers) t.join();
  std::vector<int> seen(kThreads * kItems);
  for (const std::vector<int>& items : taken) {
    std::vector<int> last(kThreads, -1);
    for (const int item : items) {
      ++seen[static_cast<size_t>(item)];
      // One producer's items keep their order.
      EXPECT_GT(item, last[static_cast<size_t>(item / kItems)]);
      last[static_cast<size_t>(item / kItems)] = item;
    }
  }
  EXPECT_EQ(seen, std::vector<int>(kThreads * kItems, 1));
}

}  // namespace
}  // namespace perigee
