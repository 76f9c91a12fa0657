#include "parallel/shard.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace perigee::parallel {
namespace {

using Bounds = std::vector<int64_t>;

Shard ShareOf(int64_t total, int64_t share) {
  return {.total = total, .share = share, .first_held = share, .num_held = 1};
}

TEST(Shard, OneShareIsEverything) {
  const Shard shard;
  EXPECT_EQ(shard.Of(10).begin, 0);
  EXPECT_EQ(shard.Of(10).end, 10);
  EXPECT_EQ(shard.Held(10).size(), 10);
  EXPECT_EQ(shard.PartBounds(16), (Bounds{0, 2, 4, 6, 8, 10, 12, 14, 16}));
}

TEST(Shard, SharesTileWhateverTheSize) {
  for (int64_t total = 1; total <= 16; ++total) {
    for (const int64_t size : {0, 1, 7, 16, 17, 100, 163840}) {
      int64_t next = 0;
      for (int64_t share = 0; share < total; ++share) {
        const Range range = ShareOf(total, share).Of(size);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), size / total);
        EXPECT_LE(range.size(), size / total + 1);
        EXPECT_EQ(ShareOf(total, 0).Of(size, share).begin, range.begin);
        next = range.end;
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(Shard, HeldIsTheSharesOfAShard) {
  // 8 ranks, C 4: the second shard of attention is shares 4 to 7, of which this rank has 5.
  const Shard shard{.total = 8, .share = 5, .first_held = 4, .num_held = 4};
  EXPECT_EQ(shard.Of(32).begin, 20);
  EXPECT_EQ(shard.Of(32).end, 24);
  EXPECT_EQ(shard.Held(32).begin, 16);
  EXPECT_EQ(shard.Held(32).end, 32);
  // Also where shares are not equal.
  EXPECT_EQ(shard.Held(13).begin, shard.Of(13, 4).begin);
  EXPECT_EQ(shard.Held(13).end, shard.Of(13, 7).end);
}

// The parts of the shares, put one after another, are the eight parts of one rank.
TEST(Shard, PartsOfSharesTileTheSum) {
  for (const int64_t size : {1, 7, 8, 13, 36, 100, 4096}) {
    const Bounds whole = Shard().PartBounds(size);
    ASSERT_EQ(whole.size(), 9u);
    EXPECT_EQ(whole.front(), 0);
    EXPECT_EQ(whole.back(), size);
    for (int64_t p = 0; p < 8; ++p) EXPECT_EQ(whole[static_cast<size_t>(p)], p * size / 8);
    for (const int64_t total : {1, 2, 4, 8}) {
      Bounds joined = {0};
      for (int64_t share = 0; share < total; ++share) {
        const Shard shard = ShareOf(total, share);
        const Bounds bounds = shard.PartBounds(size);
        ASSERT_EQ(bounds.size(), static_cast<size_t>(8 / total + 1));
        EXPECT_EQ(bounds.front(), 0);
        EXPECT_EQ(bounds.back(), shard.Of(size).size());
        for (size_t i = 1; i < bounds.size(); ++i) joined.push_back(shard.Of(size).begin + bounds[i]);
      }
      EXPECT_EQ(joined, whole) << size << " in " << total << " shares";
    }
  }
}

TEST(Shard, PartsOfHeldSharesAreThoseOfTheShares) {
  const Shard shard{.total = 8, .share = 5, .first_held = 4, .num_held = 4};
  EXPECT_EQ(shard.PartBounds(100, 4, 4), (Bounds{0, 12, 25, 37, 50}));
  EXPECT_EQ(shard.PartBounds(100), (Bounds{0, 13}));
}

TEST(Shard, SharesThatDoNotDividePartsAreOnePart) {
  EXPECT_EQ(ShareOf(3, 1).PartBounds(10), (Bounds{0, 3}));
  EXPECT_EQ(ShareOf(3, 2).PartBounds(10), (Bounds{0, 4}));
  EXPECT_EQ(ShareOf(16, 0).PartBounds(32), (Bounds{0, 2}));
  EXPECT_EQ(ShareOf(6, 2).PartBounds(36, 2, 2), (Bounds{0, 12}));
}

}  // namespace
}  // namespace perigee::parallel
