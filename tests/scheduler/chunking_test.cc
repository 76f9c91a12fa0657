#include "scheduler/chunking.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "scheduler/snapshot_policy.h"

namespace perigee::scheduler {
namespace {

// The lengths into which a prompt is cut when every step has room for `chunk_size` rows.
std::vector<int64_t> Pieces(int64_t prompt, int64_t chunk_size) {
  std::vector<int64_t> pieces;
  for (int64_t computed = 0; computed < prompt;) {
    pieces.push_back(ChunkRows(computed, prompt, chunk_size, CutGrid(chunk_size)));
    if (pieces.back() == 0) break;
    computed += pieces.back();
  }
  return pieces;
}

TEST(ChunkingTest, PiecesOfEverySizeCoverThePrompt) {
  EXPECT_EQ(Pieces(3, 1), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(Pieces(7, 3), (std::vector<int64_t>{3, 3, 1}));
  EXPECT_EQ(Pieces(129, 64), (std::vector<int64_t>{64, 64, 1}));
  EXPECT_EQ(Pieces(250, 100), (std::vector<int64_t>{100, 100, 50}));
  EXPECT_EQ(Pieces(2049, 2048), (std::vector<int64_t>{2048, 1}));
  EXPECT_EQ(Pieces(2048, 2048), (std::vector<int64_t>{2048}));
}

TEST(ChunkingTest, MultiplesOf64CutOnTheGridOf64) {
  const int64_t grid = CutGrid(2048);
  EXPECT_EQ(grid, 64);
  EXPECT_EQ(ChunkRows(0, 5000, 1000, grid), 960);
  EXPECT_EQ(ChunkRows(960, 5000, 100, grid), 64);
  EXPECT_EQ(ChunkRows(960, 5000, 63, grid), 0);
  EXPECT_EQ(ChunkRows(4992, 5000, 63, grid), 8);
}

TEST(ChunkingTest, OtherSizesAreTakenWholeOrNotAtAll) {
  EXPECT_EQ(CutGrid(100), 100);
  EXPECT_EQ(CutGrid(3), 3);
  EXPECT_EQ(ChunkRows(100, 300, 99, 100), 0);
  EXPECT_EQ(ChunkRows(200, 299, 99, 100), 99);
}

PrefillWish Wish(int64_t computed, int64_t prompt_size) {
  return {.computed = computed, .prompt_size = prompt_size, .stop = prompt_size};
}

TEST(ShareRowsTest, TheOldestFirstOrTheShortest) {
  const std::vector<PrefillWish> wishes = {Wish(0, 1000), Wish(512, 700), Wish(0, 50)};
  EXPECT_EQ(ShareRows(wishes, PrefillTurn::kOldest, 256, 256), (std::vector<int64_t>{256, 0, 0}));
  EXPECT_EQ(ShareRows(wishes, PrefillTurn::kShortest, 256, 256), (std::vector<int64_t>{0, 188, 50}));
  EXPECT_EQ(ShareRows(wishes, PrefillTurn::kOldest, 512, 256), (std::vector<int64_t>{256, 188, 50}));
}

TEST(ShareRowsTest, APieceEndsWhereASnapshotIsWanted) {
  const std::vector<PrefillWish> wishes = {{.computed = 64, .prompt_size = 1000, .stop = 192}, Wish(0, 1000)};
  EXPECT_EQ(ShareRows(wishes, PrefillTurn::kOldest, 256, 256), (std::vector<int64_t>{128, 128}));
}

TEST(SnapshotPointsTest, EndBranchAndInterval) {
  const SnapshotPoints points{.prompt_size = 700, .interval = 256, .branch = 320};
  std::vector<int64_t> seen;
  for (int64_t at = points.After(0); at < 700; at = points.After(at)) seen.push_back(at);
  EXPECT_EQ(seen, (std::vector<int64_t>{256, 320, 512, 640}));
  // The row that gives the first token is always computed: a state at the end would be of no use to the same
  // prompt.
  EXPECT_EQ((SnapshotPoints{.prompt_size = 128, .interval = 2048}.After(0)), 64);
  EXPECT_EQ((SnapshotPoints{.prompt_size = 64, .interval = 2048}.After(0)), 64) << "none";
}

}  // namespace
}  // namespace perigee::scheduler
