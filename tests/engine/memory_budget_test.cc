#include "engine/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "testing/advised_flags.h"

namespace perigee::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMega = 1'000'000;

// Two ranks, the second with a smaller share.
ModelCosts TwoRanks() {
  return {.max_context = 6400,
          .ranks = {{.weights = 10 * kMega, .per_token = 100, .per_sequence = 50'000},
                    {.weights = 8 * kMega, .per_token = 100, .per_sequence = 30'000}},
          .embedding_bytes = kMega,
          .workspace = [](const EngineConfig& config, int rank) {
            return static_cast<uint64_t>(config.max_prefill_tokens) * (rank == 0 ? 1000 : 500);
          }};
}

constexpr Machine Of(uint64_t bytes) {
  return {.memory_bytes = bytes, .available_bytes = bytes, .cores = 2, .random = 1};
}

EngineConfig Flags() {
  EngineConfig config{.max_running_requests = 8, .chunked_prefill_size = 1024};
  config.parallel.tp = 2;
  return config;
}

Sized Decided(const EngineConfig& config, const Machine& machine) {
  StatusOr<Sized> sized = DecideSizes(config, TwoRanks(), machine);
  EXPECT_TRUE(sized.ok()) << sized.status().message();
  return std::move(sized).value();
}

TEST(MemoryBudget, EveryRankEveryKind) {
  const Sized sized = Decided(Flags(), Of(100 * kMega));
  const MemoryPlan& m = sized.memory;
  ASSERT_EQ(m.ranks.size(), 2u);
  EXPECT_EQ(m.tokens, 8 * 6400);
  EXPECT_EQ(m.ranks[0], (RankMemory{.weights = 10 * kMega,
                                    .latents = 8 * 6400 * 100,
                                    .states = 8 * 50'000,
                                    .snapshots = 16 * 50'000,
                                    .workspace = 1024 * 1000}));
  EXPECT_EQ(m.ranks[1], (RankMemory{.weights = 8 * kMega,
                                    .latents = 8 * 6400 * 100,
                                    .states = 8 * 30'000,
                                    .snapshots = 16 * 30'000,
                                    .workspace = 1024 * 500}));
  EXPECT_EQ(m.Total(), kMega + m.ranks[0].Total() + m.ranks[1].Total());
  EXPECT_EQ(m.budget_bytes, 80 * kMega);
  EXPECT_EQ(m.LongestRequest(), 6400);
  EXPECT_TRUE(m.Fits());
}

TEST(MemoryBudget, ThePoolTakesWhatIsLeft) {
  EngineConfig config = Flags();
  config.mem_fraction_static = 0.5;
  const Sized sized = Decided(config, Of(52 * kMega));
  EXPECT_TRUE(sized.memory.Fits());
  EXPECT_EQ(sized.memory.budget_bytes, 26 * kMega);
  // One block more would be too much.
  EXPECT_GT(sized.memory.Total() + 64 * 200, sized.memory.budget_bytes);
  EXPECT_GE(sized.memory.tokens, 6400);
}

TEST(MemoryBudget, WhatIsNotFreeIsNotPlanned) {
  Machine machine = Of(100 * kMega);
  machine.available_bytes = 25 * kMega;
  const Sized sized = Decided(Flags(), machine);
  EXPECT_EQ(sized.memory.budget_bytes, 25 * kMega);
  EXPECT_TRUE(sized.memory.Fits());
}

TEST(MemoryBudget, OwnSnapshotsGiveWayToOneContext) {
  EngineConfig config = Flags();
  config.mem_fraction_static = 1;
  // Fixed 20,536,000; 8 states 640,000; a context 1,280,000: room for 3 snapshots of 80,000.
  const Sized sized = Decided(config, Of(22'456'000 + 3 * 80'000));
  EXPECT_TRUE(sized.memory.Fits());
  EXPECT_EQ(sized.memory.snapshots, 3);
  EXPECT_EQ(sized.memory.tokens, 6400);
  config.state_snapshots = 4;
  const Sized asked = Decided(config, Of(22'456'000 + 3 * 80'000));
  EXPECT_TRUE(asked.memory.Fits());
  EXPECT_EQ(asked.memory.snapshots, 4) << "asked for: kept, and the pool gives way";
  EXPECT_EQ(asked.memory.tokens, 6400 - 448);
}

TEST(MemoryBudget, ThePoolGivesWayToLessThanOneContext) {
  EngineConfig config = Flags();
  config.mem_fraction_static = 1;
  // Fixed 20,536,000; 8 states 640,000; a snapshot 80,000; half a context 640,000.
  const uint64_t bytes = 20'536'000 + 640'000 + 80'000 + 3200 * 200;
  const Sized sized = Decided(config, Of(bytes));
  EXPECT_TRUE(sized.memory.Fits());
  EXPECT_EQ(sized.memory.snapshots, 1);
  EXPECT_EQ(sized.memory.tokens, 3200);
  EXPECT_EQ(sized.memory.context_length, 6400);
  EXPECT_EQ(sized.memory.LongestRequest(), 3200);
  EXPECT_THAT(MemoryText(sized.memory),
              HasSubstr("longest request: 3,200 tokens (the pool; the context length is 6,400)"));
  config.context_length = 6400;
  EXPECT_FALSE(Decided(config, Of(bytes)).memory.Fits()) << "asked for: kept or refused";
}

TEST(MemoryBudget, TheDefaultNumberOfRequestsGivesWayLast) {
  EngineConfig config = Flags();
  config.mem_fraction_static = 1;
  config.max_running_requests = 0;
  // A chunk, a snapshot and 10 states beside what is fixed.
  const uint64_t bytes = 20'536'000 + 1024 * 200 + 11 * 80'000;
  const Sized sized = Decided(config, Of(bytes));
  EXPECT_TRUE(sized.memory.Fits());
  EXPECT_EQ(sized.memory.sequences, 8);
  EXPECT_GE(sized.memory.tokens, 1024);
}

TEST(MemoryBudget, EveryProcessHasTheEmbedding) {
  ModelCosts costs = TwoRanks();
  costs.processes = 2;
  const StatusOr<Sized> sized = DecideSizes(Flags(), costs, Of(100 * kMega));
  ASSERT_TRUE(sized.ok());
  const MemoryPlan& m = sized->memory;
  EXPECT_EQ(m.Total(), 2 * kMega + m.ranks[0].Total() + m.ranks[1].Total());
  EXPECT_THAT(MemoryText(m), HasSubstr("embedding 976.56 KiB once a process, 2 processes"));
}

TEST(MemoryBudget, RefusesWithNumbersAndFlagsThatFit) {
  for (const uint64_t bytes : {21 * kMega, 22 * kMega, 25 * kMega}) {
    for (const auto& [tokens, sequences, snapshots] :
         {std::tuple(0, 8, 0), std::tuple(100'000, 8, 0), std::tuple(0, 4096, 0), std::tuple(640, 100, 900),
          std::tuple(1'000'000, 5000, 5000)}) {
      EngineConfig config = Flags();
      config.mem_fraction_static = 1;
      config.max_total_tokens = tokens;
      config.max_running_requests = sequences;
      config.state_snapshots = snapshots;
      const Sized sized = Decided(config, Of(bytes));
      const Status fits = CheckFits(config, sized, TwoRanks(), Of(bytes));
      EXPECT_EQ(fits.ok(), sized.memory.Total() <= bytes);
      if (fits.ok()) continue;
      EXPECT_EQ(fits.code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(fits.message(), AllOf(HasSubstr("weights 18.1"), HasSubstr("workspace 1.46 MiB"),
                                        HasSubstr("--mem-fraction-static 1")));
      const std::optional<EngineConfig> advised = test::Advised(config, fits.message());
      ASSERT_TRUE(advised) << fits.message();
      EXPECT_TRUE(Decided(*advised, Of(bytes)).memory.Fits()) << fits.message();
    }
  }
}

TEST(MemoryBudget, KeepsOfTheDemandsWhatFits) {
  EngineConfig config = Flags();
  config.max_total_tokens = 1'000'000;
  const Machine machine = Of(100 * kMega);
  const Status refused = CheckFits(config, Decided(config, machine), TwoRanks(), machine);
  EXPECT_THAT(refused.message(),
              HasSubstr("would fit: --max-running-requests 8 --max-total-tokens 51200 --state-snapshots 16"));
}

TEST(MemoryBudget, AdvisesASmallerStepWhereTheWorkspaceIsTooMuch) {
  EngineConfig config = Flags();
  config.chunked_prefill_size = 8192;  // 12,288,000 bytes
  config.mem_fraction_static = 1;
  const Machine machine = Of(23 * kMega);
  const Status refused = CheckFits(config, Decided(config, machine), TwoRanks(), machine);
  EXPECT_THAT(refused.message(),
              HasSubstr("would fit: --max-running-requests 8 --max-total-tokens 6720 --state-snapshots 6 "
                        "--chunked-prefill-size 1024"));
}

TEST(MemoryBudget, SaysWhenNothingFits) {
  const Machine small = Of(19 * kMega);
  EXPECT_THAT(CheckFits(Flags(), Decided(Flags(), small), TwoRanks(), small).message(),
              AllOf(HasSubstr("it takes 18.30 MiB"), HasSubstr(" at the least: ")));
  EXPECT_THAT(MemoryText(Decided(Flags(), small).memory), HasSubstr("\ndoes not fit: 1,024 tokens at "));
  // Four fifths are too little for anything, all of it is enough.
  const Machine enough = Of(23 * kMega);
  const Status refused = CheckFits(Flags(), Decided(Flags(), enough), TwoRanks(), enough);
  EXPECT_THAT(refused.message(), HasSubstr("would fit: --mem-fraction-static 0.9"));
  const std::optional<EngineConfig> advised = test::Advised(Flags(), refused.message());
  ASSERT_TRUE(advised) << refused.message();
  EXPECT_TRUE(Decided(*advised, enough).memory.Fits()) << refused.message();
}

TEST(MemoryBudget, TextHasTheFigures) {
  const std::string text = MemoryText(Decided(Flags(), Of(100 * kMega)).memory);
  for (const char* part :
       {"rank 0: ", "rank 1: ", "weights 9.54 MiB", "workspace 1000.00 KiB",
        "fits: 51,200 tokens at 200 B, 8 requests at 78.12 KiB; longest request: 6,400 tokens",
        "prefix cache: 16 snapshots, 1.22 MiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(MemoryBudget, FractionIsAPart) {
  EngineConfig config = Flags();
  config.mem_fraction_static = 1.5;
  EXPECT_THAT(DecideSizes(config, TwoRanks(), Of(kMega)).status().message(),
              HasSubstr("--mem-fraction-static 1.5"));
}

}  // namespace
}  // namespace perigee::engine
