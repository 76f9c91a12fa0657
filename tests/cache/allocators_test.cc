#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/slot_allocator.h"

namespace perigee::cache {
namespace {

TEST(BlockAllocatorTest, HandsOutEveryBlockOnceAndThenNone) {
  BlockAllocator blocks(5);
  std::set<int32_t> seen;
  for (int i = 0; i < 5; ++i) {
    const std::optional<int32_t> block = blocks.Allocate();
    ASSERT_TRUE(block.has_value());
    EXPECT_TRUE(seen.insert(*block).second);
    EXPECT_EQ(blocks.ref_count(*block), 1);
  }
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 4);
  EXPECT_EQ(blocks.num_free(), 0);
  EXPECT_FALSE(blocks.Allocate().has_value());
}

TEST(BlockAllocatorTest, IsFreeOnlyAfterTheLastRelease) {
  BlockAllocator blocks(1);
  const int32_t block = *blocks.Allocate();
  blocks.AddRef(block);
  blocks.Release(block);
  EXPECT_EQ(blocks.ref_count(block), 1);
  EXPECT_FALSE(blocks.Allocate().has_value());
  blocks.Release(block);
  EXPECT_EQ(blocks.num_free(), 1);
  EXPECT_EQ(blocks.Allocate(), block);
}

TEST(BlockAllocatorTest, ReusesTheBlockFreedLast) {
  BlockAllocator blocks(4);
  const int32_t first = *blocks.Allocate();
  const int32_t second = *blocks.Allocate();
  blocks.Release(second);
  blocks.Release(first);
  EXPECT_EQ(*blocks.Allocate(), first);
  EXPECT_EQ(*blocks.Allocate(), second);
}

TEST(BlockAllocatorTest, AgreesWithAModelOnRandomTraces) {
  std::mt19937 random(7);
  BlockAllocator blocks(16);
  std::map<int32_t, int> model;
  for (int step = 0; step < 5000; ++step) {
    const auto pick = [&] {
      auto it = model.begin();
      std::advance(it, static_cast<long>(random() % model.size()));
      return it;
    };
    const unsigned action = random() % 3;
    if (action == 0) {
      const std::optional<int32_t> block = blocks.Allocate();
      ASSERT_EQ(block.has_value(), model.size() < 16);
      if (block) {
        ASSERT_TRUE(model.emplace(*block, 1).second) << "block handed out twice";
      }
    } else if (!model.empty()) {
      auto it = pick();
      if (action == 1) {
        blocks.AddRef(it->first);
        ++it->second;
      } else {
        blocks.Release(it->first);
        if (--it->second == 0) model.erase(it);
      }
    }
    blocks.CheckInvariants();
    ASSERT_EQ(blocks.num_free(), 16 - static_cast<int64_t>(model.size()));
    for (const auto& [block, refs] : model) ASSERT_EQ(blocks.ref_count(block), refs);
  }
}

TEST(BlockAllocatorDeathTest, CatchesMisuse) {
  BlockAllocator blocks(2);
  const int32_t block = *blocks.Allocate();
  blocks.Release(block);
  EXPECT_DEATH(blocks.Release(block), "released twice");
  EXPECT_DEATH(blocks.AddRef(block), "free block");
  EXPECT_DEATH(blocks.Release(2), "num_blocks");
}

TEST(SlotAllocatorTest, HandsOutEverySlotOnceAndTakesItBack) {
  SlotAllocator slots(3);
  std::set<int32_t> seen;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(seen.insert(*slots.Allocate()).second);
  EXPECT_FALSE(slots.Allocate().has_value());
  slots.CheckInvariants();
  slots.Release(1);
  EXPECT_FALSE(slots.in_use(1));
  EXPECT_EQ(slots.num_free(), 1);
  slots.CheckInvariants();
  EXPECT_EQ(slots.Allocate(), 1);
}

TEST(SlotAllocatorDeathTest, CatchesMisuse) {
  SlotAllocator slots(2);
  EXPECT_DEATH(slots.Release(0), "released twice");
  EXPECT_DEATH(slots.Release(-1), "num_slots");
}

}  // namespace
}  // namespace perigee::cache
