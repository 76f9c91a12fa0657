#include "engine/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace perigee::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kU = 2304;  // elements of a hidden row

PlanRequest Shape48B(int64_t prompt = 131072) {
  PlanRequest request;
  request.shape = "kimi-linear-48b";
  request.prompt = prompt;
  return request;
}

PlanRequest Ranks(int tp, int cp, int64_t prompt = 131072) {
  PlanRequest request = Shape48B(prompt);
  request.parallel.tp = tp;
  request.parallel.attn_cp = cp;
  request.parallel.enable_prefill_cp = cp > 1;
  request.parallel.cp_strategy = "zigzag";
  return request;
}

PlanReport Made(const PlanRequest& request) {
  StatusOr<PlanReport> report = MakePlan(request);
  if (!report.ok()) {
    ADD_FAILURE() << report.status().message();
    return {};
  }
  return *std::move(report);
}

std::string Row(const PlanTransition& t) {
  std::string out = t.kind + " x" + std::to_string(t.blocks);
  for (const std::string& cell : {t.stream, t.input, t.rows, t.latents, t.output}) out += " " + cell;
  return out;
}

std::vector<std::string> Rows(const std::vector<PlanTransition>& table) {
  std::vector<std::string> rows;
  for (const PlanTransition& t : table) rows.push_back(Row(t));
  return rows;
}

// kind xblocks stream input rows latents output.
TEST(PlanReport, TransitionsOfShardedRows) {
  const PlanReport report = Made(Ranks(4, 4));
  EXPECT_THAT(Rows(report.prefill),
              ::testing::ElementsAre("entry x1 slice none cp none none",
                                     "kda x20 none all_gather full none reduce_scatter",
                                     "mla x7 none none cp all_gather none",
                                     "feed_forward x27 none all_gather full none reduce_scatter",
                                     "exit x1 none none cp none all_gather"));
  EXPECT_THAT(Rows(report.decode),
              ::testing::ElementsAre(
                  "entry x1 none none full none none", "kda x20 none none full none all_reduce_tp",
                  "mla x7 none none full none all_reduce_tp",
                  "feed_forward x27 none none full none all_reduce_tp", "exit x1 none none full none none"));
}

TEST(PlanReport, TransitionsOfTheBaseline) {
  PlanRequest request = Ranks(4, 4);
  request.parallel.cp_layout = "replicated";
  EXPECT_THAT(Rows(Made(request).prefill),
              ::testing::ElementsAre("entry x1 slice none cp none all_reduce_tp",
                                     "kda x1 all_gather none full none all_reduce_tp",
                                     "kda x19 none none full none all_reduce_tp",
                                     "mla x7 slice none cp all_gather none",
                                     "feed_forward x20 none none full none all_reduce_tp",
                                     "feed_forward x7 all_gather none full none all_reduce_tp",
                                     "exit x1 slice none cp none all_gather"));
}

// A gather or a scatter among 4 sends 3/4 of a row, an all-reduce twice that; latents are a quarter row wide.
TEST(PlanReport, ElementsOfShardedRows) {
  const PlanElements e = Made(Ranks(4, 4)).elements;
  EXPECT_EQ(e.entry, 0);
  EXPECT_EQ(e.kda, 20 * 1.5 * kU);
  EXPECT_EQ(e.mla, 7 * 0.1875 * kU);
  EXPECT_EQ(e.feed_forward, 27 * 1.5 * kU);
  EXPECT_EQ(e.exit, 0);
  EXPECT_EQ(e.logits, 0.75 * kU);
  EXPECT_EQ(e.total, 71.8125 * kU);
  // The last layer's experts see wanted rows only: all, or one of four, or one of very many.
  EXPECT_EQ(e.Served(1), 71.8125 * kU);
  EXPECT_EQ(e.Served(4), (71.8125 - 1.5 * 3 / 4) * kU);
  EXPECT_NEAR(e.Served(1 << 20), 70.3125 * kU, 0.01);
}

TEST(PlanReport, ElementsOfTheBaseline) {
  PlanRequest request = Ranks(4, 4);
  request.parallel.cp_layout = "replicated";
  const PlanElements e = Made(request).elements;
  EXPECT_EQ(e.entry, 1.5 * kU);
  EXPECT_EQ(e.kda, (0.75 + 20 * 1.5) * kU);
  EXPECT_EQ(e.mla, 7 * 0.1875 * kU);
  EXPECT_EQ(e.feed_forward, (27 * 1.5 + 7 * 2 * 0.75) * kU);
  EXPECT_EQ(e.exit, 0.75 * kU);
  EXPECT_EQ(e.total, 85.3125 * kU);
  // The last gather after MLA, the last all-reduce and the exit.
  EXPECT_NEAR(e.Served(1 << 20), (85.3125 - 1.5 - 1.5 - 0.75) * kU, 0.01);
}

TEST(PlanReport, ElementsOfTheOtherSpreads) {
  EXPECT_EQ(Made(Shape48B()).elements.total, 0);
  EXPECT_EQ(Made(Ranks(4, 1)).elements.total, 81 * kU);
  EXPECT_EQ(Made(Ranks(4, 1)).elements.logits, 0);
  // Two ranks hold the same half of the rows: a gather sends 1/2, the sum of two halves 2 * 1/2 * 1/2.
  const PlanElements e = Made(Ranks(4, 2)).elements;
  EXPECT_EQ(e.kda, 20 * 1.5 * kU);
  EXPECT_EQ(e.mla, 7 * (0.5 * 576 + 0.5 * kU));
  EXPECT_EQ(e.feed_forward, 27 * 1.5 * kU);
}

// One token: every weight of the chosen experts, of the shared ones and of the head is used once.
TEST(PlanReport, FlopsOfOneToken) {
  const PlanReport report = Made(Shape48B(1));
  ASSERT_EQ(report.flops.size(), 1u);
  const RankFlops& f = report.flops[0];
  EXPECT_EQ(f.gemms, 2.0 * 3'105'767'424);
  EXPECT_EQ(f.attention, 7 * 20480.0);  // 2 * 32 heads * (192 + 128)
  EXPECT_EQ(f.pairs, 1);
  // 20 layers, 32 heads: 6 * 128^2 + 10 * 64 * 128 + 2/3 * 64^2, and the three convolutions.
  EXPECT_NEAR(f.kda, 20 * 32 * (98304 + 81920 + 8192 / 3.0 + 2 * 3 * 128 * 4), 1);
}

TEST(PlanReport, FlopsOfAWholePrompt) {
  constexpr double kPrompt = 2048;  // one chunk
  const PlanReport report = Made(Shape48B(2048));
  const RankFlops& f = report.flops[0];
  EXPECT_EQ(f.pairs, kPrompt * (kPrompt + 1) / 2);
  // In the last layer only one row attends.
  EXPECT_EQ(f.attention, 20480.0 * (6 * f.pairs + kPrompt));
  const double head = 377'487'360;
  const double moe = 9 * 7'077'888.0 + 589'824;
  const double queries = (32 * 192 + 32 * 128) * kU;  // q_proj and o_proj
  const double all = 3'105'767'424 - head - moe - queries;
  EXPECT_EQ(f.gemms, 2 * (kPrompt * all + moe + queries + head));
}

TEST(PlanReport, RanksShareTheWork) {
  const RankFlops one = Made(Shape48B()).flops[0];
  const PlanReport zigzag = Made(Ranks(4, 4));
  ASSERT_EQ(zigzag.flops.size(), 4u);
  double pairs = 0, kda = 0;
  for (const RankFlops& f : zigzag.flops) {
    pairs += f.pairs;
    kda += f.kda;
  }
  EXPECT_EQ(pairs, one.pairs);
  EXPECT_DOUBLE_EQ(kda, one.kda);
  // Pairs of two ranks differ by less than 2 (prefix + rows) a chunk.
  EXPECT_LT(zigzag.pairs_balance, 1 + 4 * 2 * 131072 / (pairs / 4));
  EXPECT_LT(zigzag.balance, 1.01);

  // The last of four equal runs of each of four chunks: run r of chunk c sees 4 c + r + 1/2 of 16 parts.
  PlanRequest request = Ranks(4, 4);
  request.parallel.cp_strategy = "contiguous";
  const PlanReport contiguous = Made(request);
  EXPECT_NEAR(contiguous.pairs_balance, (3.5 + 7.5 + 11.5 + 15.5) * 4 / 128, 1e-4);
  EXPECT_GT(contiguous.balance, 1.05);
}

// Evenly chosen experts: ranges of experts or of their width come to the same.
TEST(PlanReport, ExpertRangesDoNotChangeTheMean) {
  PlanRequest request = Ranks(4, 4);
  request.parallel.ep = 4;
  EXPECT_EQ(Made(request).flops[0].gemms, Made(Ranks(4, 4)).flops[0].gemms);
  EXPECT_EQ(Made(request).memory.ranks[0].weights, Made(Ranks(4, 4)).memory.ranks[0].weights);
}

TEST(PlanReport, AbsorbedFormReadsLatents) {
  PlanRequest request = Shape48B(2048);
  request.parallel.deterministic = false;
  request.parallel.cp_attn_form = "absorbed";
  const RankFlops absorbed = Made(request).flops[0];
  EXPECT_EQ(absorbed.attention, 69632.0 * (6 * absorbed.pairs + 2048));
  // Each row passes kv_b_proj itself, as if its own key and value had been expanded, but for the last layer,
  // where one row does instead of all keys.
  EXPECT_EQ(Made(Shape48B(2048)).flops[0].gemms - absorbed.gemms, 2.0 * 2047 * 8192 * 512);
  request.parallel.cp_attn_form = "auto";
  EXPECT_EQ(Made(request).choice.attention_form, "by_cost");
  // 512 * 256 / (1024 - 256) = 170.7 rows are where expanding begins to pay.
  request.prompt = 170;
  EXPECT_EQ(Made(request).flops[0].attention, 69632.0 * (6 * 170 * 171 / 2 + 170));
  request.prompt = 171;
  EXPECT_EQ(Made(request).flops[0].attention, 20480.0 * (6 * 171 * 172 / 2 + 171));
}

// With split rows the form is chosen by the rows of one rank.
TEST(PlanReport, FormByCostCountsTheRowsOfARank) {
  PlanRequest request = Ranks(4, 4, 684);
  request.parallel.deterministic = false;
  request.parallel.cp_kda_mode = "head";
  const auto scores = [&] {
    double sum = 0;
    for (const RankFlops& f : Made(request).flops) sum += f.attention;
    return sum;
  };
  EXPECT_EQ(scores(), 20480.0 * (6 * 684 * 685 / 2 + 684));
  request.prompt = 683;
  EXPECT_EQ(scores(), 69632.0 * (6 * 683 * 684 / 2 + 683));
}

TEST(PlanReport, WeightsOfOneRankAreTheCheckpointRepacked) {
  const PlanReport report = Made(Shape48B());
  ASSERT_EQ(report.memory.ranks.size(), 1u);
  const model::ModelCounts counts = model::CountModel(*model::NamedShape("kimi-linear-48b"));
  // kv_b_proj of 7 layers lies there twice; vectors and taps are F32, which dt_bias and A_log were before.
  const uint64_t kv_b = 7 * uint64_t{2} * (32 * 256) * 512;
  const uint64_t widened = 20 * (3 * 4096 * 4 + 128) + 7 * 512 + 26 * 256 + (27 * 2 + 1) * 2304;
  EXPECT_EQ(report.memory.ranks[0].weights + report.memory.embedding_bytes,
            counts.bf16_checkpoint_bytes + kv_b + 2 * widened);
  EXPECT_EQ(report.memory.embedding_bytes, 754'974'720u);
  EXPECT_EQ(report.memory.bytes_per_token[0], 16128u);
  EXPECT_EQ(report.memory.bytes_per_sequence[0], 41'943'040u + 2'949'120u);
}

TEST(PlanReport, FourRanksHoldSharesAndTheirAttentionShard) {
  const PlanReport tp = Made(Ranks(4, 1));
  const PlanReport cp = Made(Ranks(4, 4));
  ASSERT_EQ(cp.memory.ranks.size(), 4u);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(cp.memory.bytes_per_token[rank], 16128u);
    EXPECT_EQ(cp.memory.bytes_per_sequence[rank], (41'943'040u + 2'949'120u) / 4);
    // MLA of all heads in place of a quarter: q_proj, o_proj, and kv_b_proj twice.
    const uint64_t heads = 7 * uint64_t{2} * ((32 * 192 + 32 * 128) * 2304 + 2 * 32 * 256 * 512);
    EXPECT_EQ(cp.memory.ranks[rank].weights - tp.memory.ranks[rank].weights, heads * 3 / 4);
  }
}

TEST(PlanReport, SaysWhatLedToTheMode) {
  const PlanChoice head = Made(Ranks(4, 4)).choice;
  EXPECT_EQ(head.mode, "head");
  EXPECT_EQ(head.strategy, "zigzag");
  EXPECT_EQ(head.attention_form, "materialised");
  EXPECT_EQ(head.chunk, 32768);
  EXPECT_TRUE(head.deterministic);
  EXPECT_THAT(head.why, HasSubstr("--cp-kda-mode auto (the default)"));
  ASSERT_EQ(head.alternatives.size(), 3u);
  EXPECT_EQ(head.alternatives[0].mode, "state");
  EXPECT_EQ(head.alternatives[0].elements.total, 41.8125 * kU);
  EXPECT_EQ(head.alternatives[1].mode, "tp");
  EXPECT_EQ(head.alternatives[1].elements.total, 81 * kU);
  EXPECT_EQ(head.alternatives[2].mode, "replicated");
  EXPECT_EQ(head.alternatives[2].elements.total, 85.3125 * kU);

  PlanRequest request = Ranks(4, 4);
  request.parallel.cp_kda_mode = "tp";
  const PlanReport tp = Made(request);
  EXPECT_EQ(tp.choice.mode, "tp");
  EXPECT_EQ(tp.choice.strategy, "none");
  EXPECT_THAT(tp.choice.why, HasSubstr("--cp-kda-mode tp"));
  EXPECT_EQ(tp.elements.total, 81 * kU);
  EXPECT_EQ(tp.flops[0].pairs, tp.flops[3].pairs);
  EXPECT_TRUE(Made(Ranks(4, 1)).choice.alternatives.empty());
}

PlanRequest StateMode(int tp, int cp) {
  PlanRequest request = Ranks(tp, cp);
  request.parallel.cp_kda_mode = "state";
  return request;
}

TEST(PlanReport, StateMovesNoRowsForKda) {
  const PlanReport report = Made(StateMode(4, 4));
  EXPECT_EQ(report.choice.mode, "state");
  EXPECT_THAT(report.choice.why, HasSubstr("--cp-kda-mode state"));
  EXPECT_THAT(report.notices, ::testing::ElementsAre(HasSubstr("within 5e-4")));
  EXPECT_EQ(Row(report.prefill[1]), "kda x20 none none cp none none");
  EXPECT_EQ(report.prefill[1].states, "all_gather");
  EXPECT_EQ(report.prefill[2].states, "none");
  EXPECT_EQ(report.decode[1].states, "none");
  EXPECT_EQ(report.elements.kda, 0);
  EXPECT_EQ(report.elements.total, 41.8125 * kU);
  // To three others, in 20 layers: of two segments M and B of 32 heads and 3 rows of 3 x 4096; after a prefix
  // a quarter of a state and of a conv tail too.
  const double first = 20 * 3 * 2 * (32 * 128 * 256 + 3 * 3 * 4096.0);
  EXPECT_EQ(report.elements.first_chunk, first);
  EXPECT_EQ(report.elements.later_chunk, first + 20 * 3 * (32 * 128 * 128 + 3 * 3 * 4096.0) / 4);
  EXPECT_EQ(Made(Ranks(4, 4)).elements.first_chunk, 0);
}

// Rank 0 has the first of eight segments of each of four chunks, of which no summary is needed.
TEST(PlanReport, StateWorksOutSummaries) {
  const std::vector<RankFlops> head = Made(Ranks(4, 4)).flops;
  const std::vector<RankFlops> state = Made(StateMode(4, 4)).flops;
  const double summary = 4 * 128 * 256 + 3 * 64 * 128 + 64 * 256.0, fold = 2 * 128 * 128 * 128.0;
  const double rows = 131072 / 4.0;
  for (const size_t rank : {0, 3}) {
    const double summarised = rank == 0 ? rows / 2 : rows;
    EXPECT_DOUBLE_EQ(state[rank].kda, head[rank].kda + 20 * 32 * (summarised * summary + 4 * 7 * fold));
    // f_a and g_a see a rank's own rows in place of all.
    EXPECT_DOUBLE_EQ(head[rank].gemms - state[rank].gemms, 20 * 2 * 2304.0 * 256 * 3 * rows);
  }
}

// KDA of the attention shard besides that of the share.
TEST(PlanReport, StateHoldsTheShardsWeights) {
  const int64_t per_head =
      2 * ((3 * 128 + 1) * 2304 + 2 * 128 * 128 + 128 * 2304) + 4 * (3 * 128 * 4 + 128 + 1);
  const uint64_t whole = 2 * 256 * 2304;  // f_a and g_a
  const uint64_t more =
      Made(StateMode(4, 4)).memory.ranks[0].weights - Made(Ranks(4, 4)).memory.ranks[0].weights;
  EXPECT_EQ(more, 20 * (32 * static_cast<uint64_t>(per_head) + whole));
}

TEST(PlanReport, AutoTakesTheCheapestWhileResultsMayDiffer) {
  PlanRequest request = Ranks(4, 4, 131072);
  request.parallel.deterministic = false;
  // Slow links and fast arithmetic.
  request.parallel.link_gbps = 25;
  request.parallel.latency_us = 0;
  request.parallel.tflops = 400;
  const PlanChoice choice = Made(request).choice;
  EXPECT_EQ(choice.mode, "state");
  EXPECT_THAT(choice.why, HasSubstr("cheapest mode for each step, here state"));
  ASSERT_FALSE(choice.cheapest.empty());
  EXPECT_EQ(choice.cheapest.back().mode, "state");
  // Rows of 4 bytes halve the break-even.
  EXPECT_NEAR(static_cast<double>(choice.cheapest.back().rows), 3640 / 2.0, 100);
  request.prompt = 100;
  EXPECT_EQ(Made(request).choice.mode, "head");
  request.parallel.latency_us = 1000;
  EXPECT_EQ(Made(request).choice.mode, "tp");
}

TEST(PlanReport, CrossoversOfStateAndHead) {
  const PlanChoice choice = Made(Ranks(4, 4)).choice;
  ASSERT_EQ(choice.break_even.size(), 2u);
  EXPECT_EQ(choice.break_even[0].strategy, "zigzag");
  EXPECT_NEAR(static_cast<double>(choice.break_even[0].rows), 3640, 70);
  EXPECT_EQ(choice.break_even[1].strategy, "contiguous");
  EXPECT_NEAR(static_cast<double>(choice.break_even[1].rows), 1850, 10);
  EXPECT_TRUE(Made(Ranks(4, 1)).choice.break_even.empty());
  EXPECT_THAT(PlanText(Made(Ranks(4, 4))), HasSubstr("contiguous from 1,8"));
}

TEST(PlanReport, TextShowsTheFigures) {
  const std::string text = PlanText(Made(Ranks(4, 4)));
  for (const char* part : {"kimi-linear-48b on 4 ranks, attn_cp 4, ep 1, a prompt of 131,072 tokens\n",
                           "mode head, strategy zigzag", "71.8125\n", "70.3125\n", "2,147,500,032\n",
                           "24,779,474,560", "embedding 720.00 MiB once a process"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(PlanReport, TextSaysWhatModesAreComparedBy) {
  PlanRequest request = Ranks(4, 4);
  std::string text = PlanText(Made(request));
  EXPECT_THAT(text, HasSubstr("cheapest at the rates below: "));
  EXPECT_THAT(text, HasSubstr("\nrates that modes are compared by\n"));
  EXPECT_THAT(text, HasSubstr("row_bytes 4 (default)\n"));
  EXPECT_THAT(text, Not(HasSubstr("(flag)")));
  request.parallel.link_gbps = 12.5;
  request.parallel.latency_us = 7;
  request.parallel.tflops = 300;
  text = PlanText(Made(request));
  EXPECT_THAT(text,
              HasSubstr("\n  attn_tp  12.5 (flag)  7 (flag)\n  tflops 300 (flag), row_bytes 4 (default)\n"));
  // Nothing is compared without CP.
  EXPECT_THAT(PlanText(Made(Ranks(4, 1))), Not(HasSubstr("rates")));
}

TEST(PlanReport, AFolderNeedsOnlyItsConfig) {
  PlanRequest request;
  request.model_path = PERIGEE_MODELS "/tiny-kimi-linear";
  request.prompt = 19;
  EXPECT_EQ(Made(request).flops[0].pairs, 190);
  request.model_path = "/nonexistent";
  EXPECT_THAT(MakePlan(request).status().message(), HasSubstr("/nonexistent/config.json: "));
}

void ExpectUsage(const PlanRequest& request, const std::string& said) {
  const StatusOr<PlanReport> report = MakePlan(request);
  ASSERT_FALSE(report.ok()) << said;
  EXPECT_EQ(report.status().code(), StatusCode::kUsage);
  EXPECT_THAT(report.status().message(), HasSubstr(said));
}

TEST(PlanReport, RefusesWhatCannotRun) {
  ExpectUsage(Ranks(4, 3), "--attn-cp-size 3");
  ExpectUsage(Ranks(3, 1), "--tp 3 does not divide the model's 32 KDA heads");
  ExpectUsage(Shape48B(0), "--prompt 0: accepted: 1 to 1048576");
  ExpectUsage(Shape48B(1048577), "--prompt 1048577");
  PlanRequest request = Shape48B();
  request.shape = "kimi";
  ExpectUsage(request, "--shape: ");
}

}  // namespace
}  // namespace perigee::engine
