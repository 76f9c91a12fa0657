#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "parallel/cp/cp_strategy.h"
#include "parallel/layer_communicator.h"
#include "parallel/rank_fixture.h"
#include "parallel/spans.h"
#include "parallel/stack_48b.h"
#include "testing/multi_rank.h"

// Elements that a forward pass of the 48B model's stack sends, per token and rank, in units u of one row's
// hidden width. A pass is the calls that the model and its layers make; blocks compute nothing here.
namespace perigee::parallel {
namespace {

using test::RankFixture;

// The 48B model's proportions: hidden 2304, latent records 576.
constexpr int64_t kHidden = 36;
constexpr int64_t kLatent = kHidden / 4;
constexpr int64_t kRows = 64;

struct Setting {
  StepMode mode = StepMode::kTp;
  int tp = 4;
  int attn_cp = 4;
  bool prune = false;             // the last layer computes wanted rows only
  std::vector<int64_t> wanted{};  // empty: all
};

struct Sent {
  comm::Traffic blocks;  // all before the rows that the head takes are put together
  comm::Traffic head;    // putting them together
};

// A rank's pass over the stack.
class Pass {
 public:
  Pass(const RankFixture& rank, const Setting& setting, const RowPartition& rows)
      : rank_(rank),
        setting_(setting),
        plan_(MakeLayoutPlan(setting.mode, test::Stack48B(), setting.tp, setting.attn_cp)),
        wanted_(setting.wanted),
        selected_(rows.Select(wanted_, &local_places_)),
        communicator_(rank.parallel(), plan_, rows, rank.context()),
        embedded_rows_(communicator_.EmbedsLocalRows() ? rows.local_rows() : rows.total_rows()) {}

  StatusOr<Sent> Run() {
    Sent sent;
    PERIGEE_ASSIGN_OR_RETURN(RowStream stream, communicator_.Enter(rank_.Zeros(embedded_rows_, kHidden)));
    for (size_t l = 0; l < test::kLayers48B; ++l) PERIGEE_RETURN_IF_ERROR(Layer(l, stream));
    PERIGEE_ASSIGN_OR_RETURN(stream, communicator_.Exit(stream));
    sent.blocks = rank_.Sent();
    if (!setting_.prune) Choose(plan_.boundary_rows, stream);
    PERIGEE_ASSIGN_OR_RETURN(const Matrix final_rows, communicator_.FinalRows(stream.residual));
    EXPECT_EQ(final_rows.rows, static_cast<int64_t>(wanted_.size()));
    sent.head = rank_.Sent() - sent.blocks;
    return sent;
  }

 private:
  int64_t NumWanted(Sharding rows) const {
    return static_cast<int64_t>(rows == Sharding::kCp ? local_places_.size() : wanted_.size());
  }
  void Choose(Sharding rows, RowStream& stream) {
    stream.residual = rank_.Zeros(NumWanted(rows), kHidden);
    communicator_.UseRows(selected_);
  }

  Status Layer(size_t l, RowStream& stream) {
    const BlockTransitions& block = plan_.blocks[2 * l];
    const bool prune = setting_.prune && l + 1 == test::kLayers48B;
    PERIGEE_ASSIGN_OR_RETURN(stream, communicator_.PrepareAttn(l, stream));
    PERIGEE_ASSIGN_OR_RETURN(const ConstMatrix x, communicator_.AttnInput(l, stream.residual));
    if (block.kind == BlockKind::kMla && communicator_.RowsAreSharded(BlockKind::kMla)) {
      PERIGEE_RETURN_IF_ERROR(communicator_.GatherRows(rank_.Zeros(x.rows, kLatent)).status());
    }
    const Matrix attended = rank_.Zeros(prune ? NumWanted(block.input_rows) : x.rows, kHidden);
    if (prune) Choose(block.stream_rows, stream);
    PERIGEE_ASSIGN_OR_RETURN(stream.branch, communicator_.AttnOutput(l, attended));
    PERIGEE_ASSIGN_OR_RETURN(stream, communicator_.PrepareMlp(l, stream));
    PERIGEE_ASSIGN_OR_RETURN(const ConstMatrix y, communicator_.MlpInput(l, stream.residual));
    PERIGEE_ASSIGN_OR_RETURN(stream.branch, communicator_.PostprocessLayer(l, rank_.Zeros(y.rows, kHidden)));
    return Status::Ok();
  }

  const RankFixture& rank_;
  const Setting& setting_;
  LayoutPlan plan_;
  std::vector<int64_t> wanted_;
  std::vector<int64_t> local_places_;
  RowPartition selected_;
  LayerCommunicator communicator_;
  int64_t embedded_rows_;
};

// What each rank sends for one prompt of kRows rows, which zigzag cuts into equal shares.
std::vector<Sent> Measure(Setting setting) {
  if (setting.wanted.empty()) {
    for (int64_t row = 0; row < kRows; ++row) setting.wanted.push_back(row);
  }
  const bool sharded = setting.mode == StepMode::kHead || setting.mode == StepMode::kReplicated;
  const std::vector<batch::SeqSpan> spans = test::MakeSpans({{0, kRows}});
  std::vector<Sent> sent(static_cast<size_t>(setting.tp));
  test::RunRanks("thread", setting.tp, [&](comm::Communicator& world) {
    const RankFixture rank(world, setting.attn_cp);
    const ParallelContext& p = rank.parallel();
    const RowPartition rows = sharded ? RowPartition::FromPlan(spans, Zigzag(spans, p.attn_cp), p.cp_rank)
                                      : RowPartition::Whole(kRows);
    StatusOr<Sent> of_rank = Pass(rank, setting, rows).Run();
    ASSERT_TRUE(of_rank.ok()) << of_rank.status().message();
    sent[static_cast<size_t>(p.rank)] = *of_rank;
  });
  return sent;
}

// In u per token of the prompt.
double PerToken(uint64_t elements) {
  return static_cast<double>(elements) / static_cast<double>(kRows * kHidden);
}
double PerToken(const comm::Traffic& traffic, comm::Collective kind) {
  return PerToken(traffic.elements[static_cast<size_t>(kind)]);
}
double SumOfRanks(const std::vector<Sent>& ranks) {
  double sum = 0;
  for (const Sent& s : ranks) sum += PerToken(s.blocks.TotalElements()) + PerToken(s.head.TotalElements());
  return sum;
}

// Among C = tp = 4 ranks: a gather of rows sends a quarter of them three times, a reduce-scatter three
// quarters once, an all-reduce both.
constexpr double kGather = 0.75;
constexpr double kReduceScatter = 0.75;
constexpr double kAllReduce = kReduceScatter + kGather;
constexpr double kLatentGather = kGather * kLatent / kHidden;
constexpr int kKdaLayers = 20;
constexpr int kMlaLayers = 7;
constexpr int kFeedForwards = kKdaLayers + kMlaLayers;

TEST(Traffic, Replicated) {
  const double embedding = kAllReduce;
  const double entry = kGather;  // at the first KDA layer
  const double kda = kAllReduce;
  const double feed_forward = kAllReduce;
  const double mla = kLatentGather + 2 * kGather;  // branch and residual
  const double exit = kGather;
  const double blocks =
      embedding + entry + kKdaLayers * kda + kFeedForwards * feed_forward + kMlaLayers * mla;
  ASSERT_EQ(blocks + exit, 85.3125);
  for (const Sent& sent : Measure({.mode = StepMode::kReplicated})) {
    EXPECT_EQ(PerToken(sent.blocks.TotalElements()), blocks);
    EXPECT_EQ(PerToken(sent.head.TotalElements()), exit);
    EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kAllReduce),
              embedding + kKdaLayers * kda + kFeedForwards * feed_forward);
    EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kAllGather), entry + kMlaLayers * mla);
  }
}

TEST(Traffic, ShardedWithHeads) {
  const double kda = kGather + kReduceScatter;
  const double feed_forward = kGather + kReduceScatter;
  const double mla = kLatentGather;
  const double blocks = kKdaLayers * kda + kFeedForwards * feed_forward + kMlaLayers * mla;
  ASSERT_EQ(blocks, 71.8125);
  for (const Sent& sent : Measure({.mode = StepMode::kHead})) {
    EXPECT_EQ(PerToken(sent.blocks.TotalElements()), blocks);
    EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kReduceScatter),
              (kKdaLayers + kFeedForwards) * kReduceScatter);
    EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kAllGather),
              (kKdaLayers + kFeedForwards) * kGather + kMlaLayers * kLatentGather);
    EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kAllReduce), 0.0);
    // The head takes the wanted rows, all of them here: this belongs to the logits.
    EXPECT_EQ(PerToken(sent.head.TotalElements()), kGather);
  }
}

TEST(Traffic, TpAndDecodeAreTwoAllReducesALayerWhateverTheCpSize) {
  const double blocks = (kKdaLayers + kMlaLayers) * kAllReduce + kFeedForwards * kAllReduce;
  ASSERT_EQ(blocks, 81.0);
  for (const StepMode mode : {StepMode::kTp, StepMode::kDecode}) {
    for (const int attn_cp : {1, 2, 4}) {
      for (const Sent& sent : Measure({.mode = mode, .attn_cp = attn_cp})) {
        EXPECT_EQ(PerToken(sent.blocks.TotalElements()), blocks);
        EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kAllReduce), blocks);
        EXPECT_EQ(sent.head.TotalElements(), 0u);
      }
    }
  }
}

TEST(Traffic, ShardedWithTwoRanksPerRow) {
  // tp 8, C 4: what a rank holds afterwards, a quarter of the rows, is summed over two ranks more.
  const double sum_of_two = 0.25 * (0.5 + 0.5);
  const double moved = kGather + kReduceScatter + sum_of_two;
  const double mla = kLatentGather + sum_of_two;
  const double blocks = (kKdaLayers + kFeedForwards) * moved + kMlaLayers * mla;
  for (const Sent& sent : Measure({.mode = StepMode::kHead, .tp = 8})) {
    EXPECT_EQ(PerToken(sent.blocks.TotalElements()), blocks);
    EXPECT_EQ(PerToken(sent.blocks, comm::Collective::kAllReduce),
              (kKdaLayers + kFeedForwards + kMlaLayers) * sum_of_two);
  }
}

TEST(Traffic, PruningTheLastLayerSendsItsLatentsAndOneRow) {
  const std::vector<int64_t> last = {kRows - 1};
  // Summed over the four ranks: one row of a gather or reduce-scatter is sent by its owner to the others, or
  // the other way round.
  const double one_row = 4 * kGather / kRows;
  const double full = 4 * (kKdaLayers + kFeedForwards) * (kGather + kReduceScatter) +
                      4 * kMlaLayers * kLatentGather + one_row;
  EXPECT_DOUBLE_EQ(SumOfRanks(Measure({.mode = StepMode::kHead, .wanted = last})), full);
  const double pruned = full - 4 * (kGather + kReduceScatter) + 2 * one_row;
  EXPECT_DOUBLE_EQ(SumOfRanks(Measure({.mode = StepMode::kHead, .prune = true, .wanted = last})), pruned);
  // With every row wanted there is nothing to leave out.
  EXPECT_DOUBLE_EQ(SumOfRanks(Measure({.mode = StepMode::kHead, .prune = true})), 4 * (71.8125 + kGather));
}

TEST(Traffic, PruningTheLastReplicatedLayerSendsItsLatentsAndOneRow) {
  const std::vector<int64_t> last = {kRows - 1};
  const double one_row = 4 * kGather / kRows;
  const double full = 4 * 85.3125 - 4 * kGather + one_row;
  EXPECT_DOUBLE_EQ(SumOfRanks(Measure({.mode = StepMode::kReplicated, .wanted = last})), full);
  // Branch and residual of one row are gathered for the last feed-forward, whose output is added up.
  const double pruned = full - 4 * (2 * kGather + kAllReduce) + 2 * one_row + 2 * one_row;
  EXPECT_DOUBLE_EQ(SumOfRanks(Measure({.mode = StepMode::kReplicated, .prune = true, .wanted = last})),
                   pruned);
}

}  // namespace
}  // namespace perigee::parallel
