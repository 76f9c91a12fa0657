#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batch/forward_batch.h"
#include "model/kimi_linear/config.h"
#include "model/kimi_linear/model.h"
#include "parallel/rank_fixture.h"
#include "parallel/step_layout.h"
#include "testing/multi_rank.h"
#include "testing/safetensors_writer.h"

// Elements that the ranks of a model of the 48B's proportions send in a prefill step, per token and rank, in
// units u of one row's hidden width. tests/parallel/traffic_test.cc has the same sums without a model.
namespace perigee::model {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kRows = 64;

// The 48B's stack and widths: hidden 2304 to latents of 576 is 36 to 9.
KimiLinearConfig SmallConfig() {
  KimiLinearConfig c = NamedShape("kimi-linear-48b").value();
  c.hidden_size = 36;
  c.intermediate_size = 16;
  c.vocab_size = 64;
  c.kda_num_heads = 4;
  c.kda_head_dim = 4;
  c.num_attention_heads = 4;
  c.kv_lora_rank = 8;
  c.qk_nope_head_dim = 2;
  c.qk_rope_head_dim = 1;
  c.v_head_dim = 2;
  c.num_experts = 4;
  c.num_experts_per_token = 2;
  c.moe_intermediate_size = 8;
  return c;
}

// A checkpoint of zeros: values do not matter here.
std::shared_ptr<const layers::WeightSource> WriteZeros(const KimiLinearConfig& config,
                                                       const test::TempFolder& folder) {
  std::vector<test::WrittenTensor> tensors;
  for (const ExpectedTensor& t : ExpectedTensors(config)) {
    tensors.push_back({t.name, "F32", t.shape, std::string(static_cast<size_t>(4 * t.NumElements()), '\0')});
  }
  folder.Write("model.safetensors", test::SafetensorsFile(tensors));
  StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.status().message());
  return std::make_shared<const layers::CheckpointWeights>(std::move(checkpoint).value());
}

// A prompt of kRows rows after `prefix` others; either the last or every row's final hidden state is wanted.
batch::ForwardBatch Prompt(batch::StepMode mode, bool all_wanted, int64_t prefix) {
  batch::PlannedSpan span;
  span.tokens.assign(kRows, 1);
  span.prefix = prefix;
  span.fresh_state = prefix == 0;
  span.block_table = {0, 0};
  span.sample = !all_wanted;
  span.prompt_logprobs = all_wanted;
  if (all_wanted) span.targets.assign(kRows - 1, 1);
  batch::BatchPlan plan;
  plan.mode = mode;
  plan.spans.push_back(span);
  return batch::MakeForwardBatch(plan);
}

// In u per token of the prompt, for each rank.
std::vector<double> Measure(batch::StepMode mode, bool all_wanted, bool prune,
                            parallel::CpStrategy strategy = parallel::Zigzag, int64_t prefix = 0) {
  const test::TempFolder folder;
  const KimiLinearConfig config = SmallConfig();
  const std::shared_ptr<const layers::WeightSource> weights = WriteZeros(config, folder);
  const batch::ForwardBatch batch = Prompt(mode, all_wanted, prefix);
  std::vector<double> sent(kRanks);
  test::RunRanks("thread", kRanks, [&](comm::Communicator& world) {
    const test::RankFixture rank(world, kRanks);
    const parallel::ParallelContext& p = rank.parallel();
    const parallel::Shard shard{
        .total = kRanks, .share = p.share, .first_held = 0, .num_held = kRanks, .holds_kda = true};
    const KimiLinearModel model(config, weights, shard, {}, Device::kCpu, prune);
    const CacheShape shape = model.cache_shape();
    cache::PagedKvCache kv(shape.kv_layers, 1, shape.kv_width);
    cache::RecurrentStatePool states(shape.state_layers, 1, shape.recurrent_floats, shape.conv_floats);
    states.Zero(0);
    const parallel::StepLayout layout = parallel::MakeStepLayout(mode, batch, strategy, p);
    const Matrix hidden = rank.Zeros(static_cast<int64_t>(batch.wanted_rows.size()), config.hidden_size);
    const Status status = model.Forward(rank.context(), batch, layout, p, {&kv, &states}, hidden);
    ASSERT_TRUE(status.ok()) << status.message();
    sent[static_cast<size_t>(p.rank)] =
        static_cast<double>(rank.Sent().TotalElements()) / static_cast<double>(kRows * config.hidden_size);
  });
  return sent;
}

double Sum(const std::vector<double>& of_ranks) {
  double sum = 0;
  for (const double s : of_ranks) sum += s;
  return sum;
}

// Embedding, first gather, 20 KDA layers, 27 feed-forwards, 7 MLA layers (latents; branch and residual),
// exit.
constexpr double kReplicated = 1.5 + 0.75 + 20 * 1.5 + 27 * 1.5 + 7 * (0.1875 + 1.5) + 0.75;
static_assert(kReplicated == 85.3125);
// 20 KDA layers, 27 feed-forwards, latents of 7 MLA layers.
constexpr double kHead = 20 * 1.5 + 27 * 1.5 + 7 * 0.1875;
static_assert(kHead == 71.8125);
// Every rank gets the wanted rows' final states; apart from the above in the head mode.
constexpr double kWantedRows = 0.75;

TEST(KimiLinearTraffic, EveryRowWanted) {
  for (const bool prune : {true, false}) {
    for (const double sent : Measure(batch::StepMode::kReplicated, true, prune)) EXPECT_EQ(sent, kReplicated);
    for (const double sent : Measure(batch::StepMode::kHead, true, prune)) {
      EXPECT_EQ(sent, kHead + kWantedRows);
    }
    for (const double sent : Measure(batch::StepMode::kTp, true, prune)) EXPECT_EQ(sent, 54 * 1.5);
  }
}

// 27 feed-forwards and the latents of 7 MLA layers: KDA moves no rows.
constexpr double kState = 27 * 1.5 + 7 * 0.1875;
static_assert(kState == 41.8125);

// What KDA sends instead, whatever the prompt's length, in u per token of this prompt: to three other ranks
// in 20 layers the last 3 pre-convolution rows of each segment, a state of a span's first segment, and M and
// B of every other; after a prefix also the rank's share of the state and of the conv tail.
double FixedPart(int segments, bool owns_first, bool prefix) {
  constexpr int kHeads = 4, kWidth = 4;  // of keys and of values
  constexpr int kHalo = 3 * 3 * kHeads * kWidth, kFloats = kHeads * kWidth * kWidth;
  const int summaries = segments - (owns_first ? 1 : 0);
  const int scan = (owns_first ? kFloats : 0) + summaries * 2 * kFloats;
  const int entry = prefix ? (kHalo + kFloats) / kRanks : 0;
  return 20.0 * 3 * (segments * kHalo + scan + entry) / (kRows * 36);
}

TEST(KimiLinearTraffic, StateSendsAFixedPartForKda) {
  for (const int64_t prefix : {0, 64}) {
    const std::vector<double> zigzag = Measure(batch::StepMode::kState, true, true, parallel::Zigzag, prefix);
    const std::vector<double> runs =
        Measure(batch::StepMode::kState, true, true, parallel::Contiguous, prefix);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(rank);
      EXPECT_DOUBLE_EQ(zigzag[rank], kState + kWantedRows + FixedPart(2, rank == 0, prefix > 0));
      EXPECT_DOUBLE_EQ(runs[rank], kState + kWantedRows + FixedPart(1, rank == 0, prefix > 0));
    }
  }
}

// Summed over the ranks, because a single row is sent by its owner.
TEST(KimiLinearTraffic, LastRowWantedWithoutPruning) {
  const double one_row = kRanks * 0.75 / kRows;
  EXPECT_DOUBLE_EQ(Sum(Measure(batch::StepMode::kHead, false, false)), kRanks * kHead + one_row);
  EXPECT_DOUBLE_EQ(Sum(Measure(batch::StepMode::kReplicated, false, false)),
                   kRanks * (kReplicated - 0.75) + one_row);
}

TEST(KimiLinearTraffic, PruningLeavesTheLastFeedForwardOneRow) {
  const double one_row = kRanks * 0.75 / kRows;
  EXPECT_DOUBLE_EQ(Sum(Measure(batch::StepMode::kHead, false, true)),
                   kRanks * (kHead - 1.5) + 2 * one_row + one_row);
  // Replicated: branch and residual are gathered, the output is all-reduced, the final row is gathered.
  EXPECT_DOUBLE_EQ(Sum(Measure(batch::StepMode::kReplicated, false, true)),
                   kRanks * (kReplicated - 1.5 - 1.5 - 0.75) + 2 * one_row + 2 * one_row + one_row);
  // tp: the last attention and feed-forward add one row up.
  EXPECT_DOUBLE_EQ(Sum(Measure(batch::StepMode::kTp, false, true)), kRanks * 52 * 1.5 + 4 * one_row);
}

}  // namespace
}  // namespace perigee::model
