#include "parallel/layer_communicator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/tree_sum.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/rank_fixture.h"
#include "parallel/spans.h"
#include "testing/multi_rank.h"

namespace perigee::parallel {
namespace {

using test::MakeSpans;
using test::RankFixture;
using test::RunRanks;

constexpr int64_t kHidden = 6;

struct GridShape {
  int tp;
  int attn_cp;
};
constexpr GridShape kGrids[] = {{2, 2}, {4, 4}, {4, 2}, {8, 4}, {8, 2}};

// Layers: KDA, MLA, KDA.
LayoutPlan Plan(StepMode mode, const GridShape& grid) {
  const std::vector<BlockKind> kinds = {BlockKind::kKda, BlockKind::kMla, BlockKind::kKda};
  return MakeLayoutPlan(mode, kinds, grid.tp, grid.attn_cp);
}
constexpr size_t kKda = 0;
constexpr size_t kMla = 1;

// Ragged, with prefixes, a short span and one row.
std::vector<batch::SeqSpan> RaggedSpans() {
  return MakeSpans({{2, 9}, {0, 1}, {3, 33}, {0, 6}, {0, 10}});
}

RowPartition Partition(const RankFixture& rank, CpStrategy strategy,
                       const std::vector<batch::SeqSpan>& spans) {
  return RowPartition::FromPlan(spans, strategy(spans, rank.parallel().attn_cp), rank.parallel().cp_rank);
}

// A value that tells row, column and whatever `salt` tells apart, and whose sums round.
float Value(int64_t row, int64_t col, int64_t salt) {
  return 1.0f / static_cast<float>(1 + row * kHidden + col + 1000 * salt);
}

Matrix Fill(const RankFixture& rank, std::span<const int64_t> rows, int64_t cols, int64_t salt) {
  const MatrixF m = rank.Zeros(static_cast<int64_t>(rows.size()), cols).As<float>();
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) m.Row(r)[c] = Value(rows[static_cast<size_t>(r)], c, salt);
  }
  return m;
}

std::vector<int64_t> AllRows(int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  return rows;
}

void ExpectRows(ConstMatrix any, std::span<const int64_t> rows, int64_t salt) {
  const ConstMatrixF m = any.As<float>();
  ASSERT_EQ(m.rows, static_cast<int64_t>(rows.size()));
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      ASSERT_EQ(m.Row(r)[c], Value(rows[static_cast<size_t>(r)], c, salt)) << "row " << r << ", column " << c;
    }
  }
}

TEST(LayerCommunicator, OneRankGetsItsOwnBuffersBack) {
  const test::KernelRunner runner(1);
  const ParallelContext alone;
  const RowPartition rows = RowPartition::Whole(3);
  std::vector<float> a(3 * kHidden), b(3 * kHidden);
  const Matrix x(a.data(), 3, kHidden), y(b.data(), 3, kHidden);
  const RowStream stream{y, x};
  for (const StepMode mode : {StepMode::kDecode, StepMode::kTp, StepMode::kHead, StepMode::kReplicated}) {
    const LayoutPlan plan = Plan(mode, {1, 1});
    const LayerCommunicator communicator(alone, plan, rows, runner.context());
    const auto expect_same = [&](const StatusOr<RowStream>& moved) {
      EXPECT_EQ(moved.value().branch.data, y.data);
      EXPECT_EQ(moved.value().residual.data, x.data);
    };
    EXPECT_FALSE(communicator.EmbedsLocalRows());
    EXPECT_FALSE(communicator.RowsAreSharded(BlockKind::kMla));
    const RowStream entered = communicator.Enter(x).value();
    EXPECT_EQ(entered.residual.data, x.data);
    EXPECT_EQ(entered.branch.data, nullptr);
    for (const size_t layer : {kKda, kMla}) {
      expect_same(communicator.PrepareAttn(layer, stream));
      expect_same(communicator.PrepareMlp(layer, stream));
      EXPECT_EQ(communicator.AttnInput(layer, x).value().data, x.data);
      EXPECT_EQ(communicator.MlpInput(layer, x).value().data, x.data);
      EXPECT_EQ(communicator.AttnOutput(layer, x).value().data, x.data);
      EXPECT_EQ(communicator.PostprocessLayer(layer, x).value().data, x.data);
    }
    expect_same(communicator.Exit(stream));
    EXPECT_EQ(communicator.FinalRows(x).value().data, x.data);
  }
}

TEST(LayerCommunicator, AStreamThatIsShardedAndGatheredIsInOrderAgain) {
  const std::vector<batch::SeqSpan> spans = RaggedSpans();
  for (const std::string& name : CpStrategyNames()) {
    for (const GridShape& grid : kGrids) {
      SCOPED_TRACE(name + ", tp " + std::to_string(grid.tp) + ", C " + std::to_string(grid.attn_cp));
      RunRanks("thread", grid.tp, [&](comm::Communicator& world) {
        const RankFixture rank(world, grid.attn_cp);
        const RowPartition rows = Partition(rank, FindCpStrategy(name).value(), spans);
        const LayoutPlan plan = Plan(StepMode::kReplicated, grid);
        const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
        const std::vector<int64_t> all = AllRows(59);
        const RowStream full{Fill(rank, all, kHidden, 1), Fill(rank, all, kHidden, 2)};
        const RowStream local = communicator.PrepareAttn(kMla, full).value();
        ExpectRows(local.branch, rows.local(), 1);
        ExpectRows(local.residual, rows.local(), 2);
        const RowStream gathered = communicator.PrepareMlp(kMla, local).value();
        ExpectRows(gathered.branch, all, 1);
        ExpectRows(gathered.residual, all, 2);
      });
    }
  }
}

TEST(LayerCommunicator, TheFirstKdaGathersTheResidualAndKeepsThereIsNoBranch) {
  RunRanks("thread", 4, [](comm::Communicator& world) {
    const RankFixture rank(world, 4);
    const std::vector<batch::SeqSpan> spans = RaggedSpans();
    const RowPartition rows = Partition(rank, Zigzag, spans);
    const LayoutPlan plan = Plan(StepMode::kReplicated, {4, 4});
    const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
    EXPECT_FALSE(communicator.EmbedsLocalRows());
    // Each rank looks the rows of its vocabulary up: here rank r those with number r modulo 4.
    const Matrix embedded = rank.Zeros(59, kHidden);
    for (int64_t r = rank.parallel().rank; r < 59; r += 4) {
      for (int64_t c = 0; c < kHidden; ++c) embedded.As<float>().Row(r)[c] = Value(r, c, 0);
    }
    const RowStream entered = communicator.Enter(embedded).value();
    ExpectRows(entered.residual, rows.local(), 0);
    const comm::Traffic before = rank.Sent();
    const RowStream first = communicator.PrepareAttn(kKda, entered).value();
    ExpectRows(first.residual, AllRows(59), 0);
    EXPECT_EQ(first.branch.data, nullptr);
    const comm::Traffic sent = rank.Sent() - before;
    EXPECT_EQ(sent.calls[static_cast<size_t>(comm::Collective::kAllGather)], 1u);
    EXPECT_EQ(sent.TotalElements(), static_cast<uint64_t>(3 * rows.local_rows() * kHidden));
    // KDA after MLA: nothing moves, the buffers are the same.
    const RowStream later = communicator.PrepareAttn(2, first).value();
    EXPECT_EQ(later.residual.data, first.residual.data);
    // The exit hands out shards again and the final rows are all rows.
    const RowStream left = communicator.Exit({first.residual, first.residual}).value();
    ExpectRows(left.branch, rows.local(), 0);
    ExpectRows(left.residual, rows.local(), 0);
    ExpectRows(communicator.FinalRows(left.residual).value(), AllRows(59), 0);
  });
}

TEST(LayerCommunicator, HeadModeEmbedsItsRowsAndGathersInputs) {
  RunRanks("thread", 4, [](comm::Communicator& world) {
    const RankFixture rank(world, 4);
    const RowPartition rows = Partition(rank, Zigzag, RaggedSpans());
    const LayoutPlan plan = Plan(StepMode::kHead, {4, 4});
    const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
    EXPECT_TRUE(communicator.EmbedsLocalRows());
    EXPECT_TRUE(communicator.RowsAreSharded(BlockKind::kMla));
    const Matrix local = Fill(rank, rows.local(), kHidden, 3);
    EXPECT_EQ(communicator.Enter(local).value().residual.data, local.data);
    EXPECT_EQ(communicator.PrepareAttn(kKda, {{}, local}).value().residual.data, local.data);
    EXPECT_EQ(communicator.AttnInput(kMla, local).value().data, local.data);
    EXPECT_EQ(communicator.AttnOutput(kMla, local).value().data, local.data);
    EXPECT_EQ(rank.Sent().TotalElements(), 0u);
    ExpectRows(communicator.AttnInput(kKda, local).value(), AllRows(59), 3);
    ExpectRows(communicator.MlpInput(kMla, local).value(), AllRows(59), 3);
  });
}

// The sum over all ranks, in the tree over shares, of what Fill gives for their shares.
std::vector<float> SumOverShares(int64_t rows, int tp) {
  std::vector<std::vector<float>> partials;
  std::vector<const float*> operands;
  for (int share = 0; share < tp; ++share) {
    partials.emplace_back();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < kHidden; ++c) partials.back().push_back(Value(r, c, share));
    }
  }
  for (const auto& p : partials) operands.push_back(p.data());
  std::vector<float> sum(static_cast<size_t>(rows * kHidden));
  comm::TreeSum(operands, rows * kHidden, sum.data());
  return sum;
}

void ExpectSum(ConstMatrix any, std::span<const int64_t> rows, const std::vector<float>& sum) {
  const ConstMatrixF m = any.As<float>();
  ASSERT_EQ(m.rows, static_cast<int64_t>(rows.size()));
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < kHidden; ++c) {
      ASSERT_EQ(m.Row(r)[c], sum[static_cast<size_t>(rows[static_cast<size_t>(r)] * kHidden + c)])
          << "row " << r << ", column " << c;
    }
  }
}

TEST(LayerCommunicator, ReductionsFollowTheTreeOverShares) {
  for (const GridShape& grid : kGrids) {
    SCOPED_TRACE("tp " + std::to_string(grid.tp) + ", C " + std::to_string(grid.attn_cp));
    const std::vector<float> sum = SumOverShares(59, grid.tp);
    RunRanks("thread", grid.tp, [&](comm::Communicator& world) {
      const RankFixture rank(world, grid.attn_cp);
      const RowPartition rows = Partition(rank, Zigzag, RaggedSpans());
      const std::vector<int64_t> all = AllRows(59);
      const LayoutPlan head = Plan(StepMode::kHead, grid);
      const LayerCommunicator scattering(rank.parallel(), head, rows, rank.context());
      const int share = rank.parallel().share;
      ExpectSum(scattering.AttnOutput(kKda, Fill(rank, all, kHidden, share)).value(), rows.local(), sum);
      ExpectSum(scattering.PostprocessLayer(kMla, Fill(rank, all, kHidden, share)).value(), rows.local(),
                sum);
      const LayoutPlan tp = Plan(StepMode::kTp, grid);
      const RowPartition whole = RowPartition::Whole(59);
      const LayerCommunicator reducing(rank.parallel(), tp, whole, rank.context());
      ExpectSum(reducing.AttnOutput(kKda, Fill(rank, all, kHidden, share)).value(), all, sum);
      ExpectSum(reducing.PostprocessLayer(kKda, Fill(rank, all, kHidden, share)).value(), all, sum);
    });
  }
}

TEST(LayerCommunicator, MlaOutputsAreAddedUpOverTheRanksWithTheSameRows) {
  RunRanks("thread", 8, [](comm::Communicator& world) {
    const RankFixture rank(world, 4);
    const RowPartition rows = Partition(rank, Zigzag, RaggedSpans());
    for (const StepMode mode : {StepMode::kHead, StepMode::kReplicated}) {
      const LayoutPlan plan = Plan(mode, {8, 4});
      const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
      const Matrix mine = Fill(rank, rows.local(), kHidden, 1 + rank.parallel().rank % 2);
      const MatrixF added = communicator.AttnOutput(kMla, mine).value().As<float>();
      ASSERT_EQ(added.rows, rows.local_rows());
      for (int64_t r = 0; r < added.rows; ++r) {
        const int64_t row = rows.local()[static_cast<size_t>(r)];
        for (int64_t c = 0; c < kHidden; ++c) {
          ASSERT_EQ(added.Row(r)[c], Value(row, c, 1) + Value(row, c, 2));
        }
      }
    }
  });
}

TEST(LayerCommunicator, OneRowIsSentByItsOwnerAlone) {
  RunRanks("thread", 4, [](comm::Communicator& world) {
    const RankFixture rank(world, 4);
    const RowPartition rows = Partition(rank, Zigzag, MakeSpans({{7, 1}}));
    const bool owner = rank.parallel().cp_rank == 0;
    const LayoutPlan plan = Plan(StepMode::kHead, {4, 4});
    const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
    const Matrix local = Fill(rank, rows.local(), kHidden, 5);
    EXPECT_EQ(local.rows, owner ? 1 : 0);
    const Matrix row = Fill(rank, AllRows(1), kHidden, rank.parallel().share);

    ExpectRows(communicator.AttnInput(kKda, local).value(), AllRows(1), 5);
    const comm::Traffic gathered = rank.Sent();
    EXPECT_EQ(gathered.TotalElements(), owner ? static_cast<uint64_t>(3 * kHidden) : 0u);

    const Matrix sum = communicator.AttnOutput(kKda, row).value();
    ExpectSum(sum, rows.local(), SumOverShares(1, 4));
    EXPECT_EQ((rank.Sent() - gathered).TotalElements(), owner ? 0u : static_cast<uint64_t>(kHidden));
  });
}

TEST(LayerCommunicator, GatherRowsTakesRowsOfAnyWidthAndStride) {
  RunRanks("thread", 4, [](comm::Communicator& world) {
    const RankFixture rank(world, 4);
    const RowPartition rows = Partition(rank, Zigzag, RaggedSpans());
    const LayoutPlan plan = Plan(StepMode::kHead, {4, 4});
    const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
    const Matrix wide = Fill(rank, rows.local(), 5, 2);
    const Matrix gathered = communicator.GatherRows(wide.Cols(0, 3)).value();
    EXPECT_EQ(gathered.cols, 3);
    ExpectRows(gathered, AllRows(59), 2);
    EXPECT_EQ(rank.Sent().TotalElements(), static_cast<uint64_t>(3 * rows.local_rows() * 3));
  });
}

TEST(LayerCommunicator, TheWantedRowsOfTheLastLayerMoveAlone) {
  RunRanks("thread", 4, [](comm::Communicator& world) {
    const RankFixture rank(world, 4);
    const RowPartition rows = Partition(rank, Zigzag, RaggedSpans());
    const std::vector<int64_t> wanted = {8, 9, 42, 58};
    const RowPartition selected = rows.Select(wanted, nullptr);
    const LayoutPlan plan = Plan(StepMode::kHead, {4, 4});
    LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
    communicator.UseRows(selected);
    EXPECT_EQ(communicator.rows().total_rows(), 4);
    const Matrix local = Fill(rank, selected.local(), kHidden, 4);
    ExpectRows(communicator.FinalRows(local).value(), AllRows(4), 4);
    EXPECT_EQ(rank.Sent().TotalElements(), static_cast<uint64_t>(3 * selected.local_rows() * kHidden));
  });
}

TEST(LayerCommunicator, ABrokenGroupIsAnErrorOfEveryMove) {
  RunRanks("thread", 2, [](comm::Communicator& world) {
    const RankFixture rank(world, 2);
    const RowPartition rows = Partition(rank, Zigzag, RaggedSpans());
    const LayoutPlan plan = Plan(StepMode::kHead, {2, 2});
    const LayerCommunicator communicator(rank.parallel(), plan, rows, rank.context());
    const Matrix local = Fill(rank, rows.local(), kHidden, 0);
    const Matrix full = Fill(rank, AllRows(59), kHidden, 0);
    rank.parallel().cp_group->Abort(Unavailable("rank 1 is gone"));
    EXPECT_EQ(communicator.AttnInput(kKda, local).status().message(), "rank 1 is gone");
    EXPECT_EQ(communicator.AttnOutput(kKda, full).status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(communicator.GatherRows(local).status().code(), StatusCode::kUnavailable);
  });
}

}  // namespace
}  // namespace perigee::parallel
