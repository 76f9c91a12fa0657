#include "kernels/context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace perigee::kernels {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

TEST(Workspace, PiecesAreAlignedAndDisjoint) {
  Workspace workspace;
  const Workspace::Scope scope(workspace);
  std::vector<float*> pieces;
  for (int64_t count = 0; count < 40; ++count) {
    float* piece = workspace.Floats(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, 0u);
    std::fill_n(piece, count, static_cast<float>(count));
    pieces.push_back(piece);
  }
  int32_t* ints = workspace.Ints(17);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ints) % 64, 0u);
  std::fill_n(ints, 17, -1);
  for (int64_t count = 0; count < 40; ++count) {
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(pieces[static_cast<size_t>(count)][i], static_cast<float>(count));
  }
}

TEST(Workspace, PlannedRoomIsAllocatedOnceAndExceededVisibly) {
  MemoryLedger ledger;
  {
    Workspace workspace(Device::kCpu, 4096, {&ledger, MemoryKind::kWorkspace});
    EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kWorkspace), 4096u);
    {
      const Workspace::Scope scope(workspace);
      workspace.Floats(1024);
      EXPECT_EQ(BytesOf(ledger.peak(), MemoryKind::kWorkspace), 4096u);
      EXPECT_EQ(workspace.peak_taken(), 4096u);
      workspace.Floats(1);
      EXPECT_GT(BytesOf(ledger.peak(), MemoryKind::kWorkspace), 4096u) << "the plan was wrong";
    }
  }
  EXPECT_EQ(TotalBytes(ledger.held()), 0u);
}

TEST(WorkspaceTally, CountsAsAWorkspaceTakes) {
  ThreadPool pool(3);
  Workspace workspace;
  WorkspaceTally tally(pool.size());
  const KernelContext context{&pool, &workspace};
  const Workspace::Scope scope(workspace);
  workspace.Floats(5);
  tally.Floats(5);
  {
    const Workspace::Scope inner(workspace);
    const WorkspaceTally::Scope inner_tally(tally);
    workspace.Floats(1000);
    tally.Floats(1000);
    ForTasks(context, 2, 7, [](int64_t, float*) {});
    tally.Tasks(2, 7);
    ForTasks(context, 100, 33, [](int64_t, float*) {});
    tally.Tasks(100, 33);
  }
  EXPECT_EQ(tally.peak_bytes(), 64u + 4032u + 3 * 192u);
  EXPECT_EQ(workspace.peak_taken(), tally.peak_bytes());
  workspace.Floats(20);
  tally.Floats(20);
  EXPECT_EQ(workspace.peak_taken(), tally.peak_bytes()) << "scopes give back";
}

TEST(Workspace, ScopesNestAndGiveBack) {
  Workspace workspace;
  EXPECT_EQ(workspace.BytesHeld(), 0u);
  const Workspace::Scope outer(workspace);
  float* kept = workspace.Floats(100);
  std::fill_n(kept, 100, 3.f);
  float* first = nullptr;
  for (int round = 0; round < 5; ++round) {
    const Workspace::Scope inner(workspace);
    float* piece = workspace.Floats(1000);
    if (first == nullptr) first = piece;
    EXPECT_EQ(piece, first);
    EXPECT_GE(piece, kept + 100);
    std::fill_n(piece, 1000, 7.f);
  }
  EXPECT_EQ(std::vector<float>(kept, kept + 100), std::vector<float>(100, 3.f));
  EXPECT_EQ(workspace.Floats(10), first);
}

// What is handed out stays where it is when a larger block has to be added.
TEST(Workspace, GrowthKeepsEarlierPieces) {
  Workspace workspace;
  const Workspace::Scope scope(workspace);
  float* small = workspace.Floats(1000);
  std::fill_n(small, 1000, 1.f);
  float* large = workspace.Floats(1 << 20);  // 4 MiB: beyond the first block
  std::fill_n(large, 1 << 20, 2.f);
  {
    const Workspace::Scope inner(workspace);
    float* larger = workspace.Floats(1 << 21);
    std::fill_n(larger, 1 << 21, 3.f);
  }
  EXPECT_EQ(std::count(small, small + 1000, 1.f), 1000);
  EXPECT_EQ(std::count(large, large + (1 << 20), 2.f), 1 << 20);
}

// After the first step the blocks are merged into one, and later steps allocate nothing.
TEST(Workspace, SteadyStateAllocatesNothing) {
  Workspace workspace;
  const auto step = [&] {
    const Workspace::Scope scope(workspace);
    std::set<float*> pieces;
    pieces.insert(workspace.Floats(200'000));
    for (int layer = 0; layer < 3; ++layer) {
      const Workspace::Scope inner(workspace);
      pieces.insert(workspace.Floats(500'000));
      pieces.insert(workspace.Floats(100'000 * (layer + 1)));
    }
    return pieces;
  };
  step();
  const size_t held = workspace.BytesHeld();
  EXPECT_GE(held, size_t{1'000'000} * sizeof(float));
  EXPECT_LT(held, 16 * kMegabyte);
  const std::set<float*> second = step();
  EXPECT_EQ(workspace.BytesHeld(), held);
  EXPECT_EQ(second.size(), 3u);  // the layers reuse each other's pieces
  EXPECT_EQ(step(), second);
  EXPECT_EQ(workspace.BytesHeld(), held);
}

TEST(ForTasks, EveryTaskOnceWithScratchOfItsOwn) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Workspace workspace;
    const KernelContext context{&pool, &workspace};
    const Workspace::Scope scope(workspace);
    for (const int64_t tasks : {0, 1, 2, 50}) {
      std::vector<int64_t> sums(static_cast<size_t>(tasks));
      ForTasks(context, tasks, 333, [&](int64_t task, float* scratch) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch) % 64, 0u);
        std::fill_n(scratch, 333, static_cast<float>(task));
        for (int i = 0; i < 333; ++i) sums[static_cast<size_t>(task)] += static_cast<int64_t>(scratch[i]) + 1;
      });
      for (int64_t task = 0; task < tasks; ++task)
        EXPECT_EQ(sums[static_cast<size_t>(task)], 333 * (task + 1));
    }
  }
}

}  // namespace
}  // namespace perigee::kernels
