#include "cache/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace perigee::cache {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kSlots = 10;  // of running sequences, before the snapshots

std::vector<int32_t> Tokens(int64_t blocks, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(blocks * kBlockTokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  // A sequence that computes its tokens, publishes them and leaves a snapshot at its end.
  struct Computed {
    PrefixIndex::Hold hold;
    std::vector<int32_t> blocks;
  };

  Computed Publish(const std::vector<int32_t>& tokens, Origin origin = kPromptForm) {
    Computed c;
    for (size_t at = 0; at < tokens.size(); at += kBlockTokens) {
      c.blocks.push_back(*blocks_.Allocate());
      c.blocks.back() =
          index_.Descend(c.hold, std::span(tokens).subspan(at, kBlockTokens), c.blocks.back(), origin);
    }
    return c;
  }

  bool Snapshot(const Computed& c, Origin origin = kPromptForm) {
    const std::optional<int32_t> slot = index_.ReserveSnapshot();
    EXPECT_TRUE(slot.has_value());
    return slot && index_.Attach(*c.hold.node, *slot, origin);
  }

  void End(Computed& c) {
    index_.Release(c.hold);
    for (const int32_t block : c.blocks) blocks_.Release(block);
    index_.CheckInvariants(0);
    blocks_.CheckInvariants();
  }

  void Leave(const std::vector<int32_t>& tokens, Origin origin = kPromptForm) {
    Computed c = Publish(tokens, origin);
    EXPECT_TRUE(Snapshot(c, origin));
    End(c);
  }

  BlockAllocator blocks_{8};
  PrefixIndex index_{blocks_, kSlots, 2};
};

TEST_F(PrefixIndexTest, AHitEndsWhereASnapshotIs) {
  Leave(Tokens(2));
  Computed longer = Publish(Tokens(4));
  End(longer);
  const PrefixIndex::Match match = index_.Find(Tokens(5));
  EXPECT_EQ(match.tokens, 128);
  EXPECT_EQ(match.known, 256);
  EXPECT_EQ(match.unheld, 2);
  EXPECT_FALSE(match.mixed);
  EXPECT_GE(match.snapshot, kSlots);
  EXPECT_EQ(index_.Find(Tokens(1)).tokens, 0);
  EXPECT_EQ(index_.Find(Tokens(5, 1)).known, 0) << "other tokens";
}

TEST_F(PrefixIndexTest, EqualBlocksAreKeptOnce) {
  Computed a = Publish(Tokens(3));
  Computed b = Publish(Tokens(3));
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(blocks_.num_free(), 5);
  EXPECT_EQ(index_.cached_blocks(), 0);
  End(a);
  EXPECT_EQ(index_.cached_blocks(), 0);
  End(b);
  EXPECT_EQ(index_.cached_blocks(), 3);
}

// What was computed in another form has other bits: nobody's rows are exchanged for those.
TEST_F(PrefixIndexTest, BlocksOfOtherOriginStayApart) {
  Computed answer = Publish(Tokens(2), 64);
  Computed prompt = Publish(Tokens(2));
  EXPECT_NE(answer.blocks[0], prompt.blocks[0]);
  EXPECT_THAT(index_.Blocks(), ::testing::UnorderedElementsAreArray(prompt.blocks))
      << "the better one is found";
  Computed mixed = Publish(Tokens(2), kMixed);
  EXPECT_NE(mixed.blocks[0], prompt.blocks[0]);
  EXPECT_THAT(index_.Blocks(), ::testing::UnorderedElementsAreArray(prompt.blocks));
  End(answer);
  End(prompt);
  End(mixed);
  EXPECT_EQ(index_.cached_blocks() + blocks_.num_free(), 8);
}

TEST_F(PrefixIndexTest, ExactReuseTakesItsOwnBitsOnly) {
  // A prompt of 64 tokens, then an answer.
  Computed c;
  const std::vector<int32_t> tokens = Tokens(2);
  for (const Origin origin : {kPromptForm, Origin{64}}) {
    c.blocks.push_back(*blocks_.Allocate());
    c.blocks.back() =
        index_.Descend(c.hold, std::span(tokens).subspan(static_cast<size_t>(c.hold.blocks) * 64, 64),
                       c.blocks.back(), origin);
    EXPECT_TRUE(Snapshot(c, origin));
  }
  End(c);
  EXPECT_EQ(index_.FindExact(tokens, 64).tokens, 128);
  EXPECT_EQ(index_.FindExact(tokens, 128).tokens, 64) << "the second block must be computed as a prompt";
  EXPECT_EQ(index_.FindExact(tokens, 63).tokens, 0);
  EXPECT_TRUE(index_.Find(tokens).mixed);
  EXPECT_FALSE(index_.Find(std::span(tokens).first(64)).mixed);
}

TEST_F(PrefixIndexTest, LeastRecentlyUsedGoesFirstAndLeavesBeforeParents) {
  Leave(Tokens(2));
  Leave(Tokens(1, 500));
  std::vector<int32_t> blocks;
  PrefixIndex::Match match = index_.Find(Tokens(2));
  PrefixIndex::Hold hold = index_.Take(match, blocks);
  EXPECT_EQ(blocks.size(), 2u);
  index_.Unpin(*match.node);
  EXPECT_TRUE(index_.EvictBlock());
  EXPECT_EQ(index_.Find(Tokens(1, 500)).known, 0) << "the only one that nobody holds";
  EXPECT_FALSE(index_.EvictBlock());
  index_.Release(hold);
  for (const int32_t block : blocks) blocks_.Release(block);
  EXPECT_TRUE(index_.EvictBlock());
  EXPECT_EQ(index_.Find(Tokens(2)).known, 64);
  EXPECT_EQ(index_.used_snapshots(), 0);
  EXPECT_TRUE(index_.EvictBlock());
  EXPECT_EQ(blocks_.num_free(), 8);
  EXPECT_EQ(index_.evicted_blocks(), 3u);
}

TEST_F(PrefixIndexTest, SnapshotsHaveAnOrderOfTheirOwn) {
  Leave(Tokens(1, 100));
  Leave(Tokens(1, 200));
  std::vector<int32_t> blocks;
  const PrefixIndex::Match match = index_.Find(Tokens(1, 100));
  PrefixIndex::Hold hold = index_.Take(match, blocks);
  Leave(Tokens(1, 300));
  EXPECT_EQ(index_.Find(Tokens(1, 200)).tokens, 0) << "the first was used since";
  EXPECT_EQ(index_.Find(Tokens(1, 200)).known, 64) << "its block is still there";
  Leave(Tokens(1, 400));
  EXPECT_EQ(index_.Find(Tokens(1, 100)).tokens, 64) << "pinned";
  EXPECT_EQ(index_.Find(Tokens(1, 300)).tokens, 0);
  index_.Unpin(*match.node);
  index_.Release(hold);
  for (const int32_t block : blocks) blocks_.Release(block);
  index_.Flush();
  EXPECT_EQ(blocks_.num_free(), 8);
  EXPECT_EQ(index_.used_snapshots(), 0);
  EXPECT_THAT(index_.Blocks(), IsEmpty());
}

TEST_F(PrefixIndexTest, AnAnswersSnapshotMovesUnlessSomebodyUsesIt) {
  Computed c = Publish(Tokens(1));
  const int32_t slot = *index_.ReserveSnapshot();
  ASSERT_TRUE(index_.Attach(*c.hold.node, slot, kPromptForm));
  EXPECT_FALSE(index_.ReclaimSnapshot(*c.hold.node, slot + 1));
  EXPECT_TRUE(index_.ReclaimSnapshot(*c.hold.node, slot));
  ASSERT_TRUE(index_.Attach(*c.hold.node, slot, kPromptForm));
  std::vector<int32_t> blocks;
  PrefixIndex::Hold hold = index_.Take(index_.Find(Tokens(1)), blocks);
  index_.Unpin(*hold.node);
  EXPECT_FALSE(index_.ReclaimSnapshot(*c.hold.node, slot)) << "it was reused";
  index_.Release(hold);
  for (const int32_t block : blocks) blocks_.Release(block);
  End(c);
}

TEST_F(PrefixIndexTest, ALoneHolderGetsTheMemoryOfItsDuplicates) {
  Leave(Tokens(3));
  Computed c = Publish(Tokens(3), kMixed);
  EXPECT_EQ(blocks_.num_free(), 2);
  const std::vector<Origin> origins(3, kMixed);
  EXPECT_EQ(index_.ReplaceOwn(c.hold, c.blocks, origins), 3);
  EXPECT_EQ(blocks_.num_free(), 5);
  EXPECT_TRUE(index_.Find(Tokens(3)).mixed);
  End(c);
}

TEST_F(PrefixIndexTest, LongPathsEndWithoutRecursion) {
  BlockAllocator blocks(200000);
  PrefixIndex index(blocks, 0, 1);
  PrefixIndex::Hold hold;
  const std::vector<int32_t> tokens = Tokens(1);
  for (int i = 0; i < 100000; ++i) {
    const int32_t block = *blocks.Allocate();
    index.Descend(hold, tokens, block, kPromptForm);
    blocks.Release(block);
  }
  index.Release(hold);
  EXPECT_EQ(index.cached_blocks(), 100000);
}

}  // namespace
}  // namespace perigee::cache
