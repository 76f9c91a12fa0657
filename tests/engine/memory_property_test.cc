// Sizes decided for any model, machine and flags.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <vector>

#include "engine/memory_budget.h"
#include "testing/advised_flags.h"

namespace perigee::engine {
namespace {

// Mostly the default, else anything up to `most`.
int64_t Given(int64_t most) {
  return *rc::gen::weightedOneOf<int64_t>(
      {{2, rc::gen::just<int64_t>(0)},
       {1, rc::gen::inRange<int64_t>(1, most + 1)},
       {1, rc::gen::inRange<int64_t>(1, std::min<int64_t>(most, 300) + 1)}});
}

ModelCosts AnyModel() {
  ModelCosts model{.max_context = *rc::gen::inRange<int64_t>(1, 1 << 20)};
  const int ranks = *rc::gen::inRange(1, 5);
  const auto bytes = [](uint64_t most) { return *rc::gen::inRange<uint64_t>(0, most); };
  for (int r = 0; r < ranks; ++r) {
    model.ranks.push_back(
        {.weights = bytes(uint64_t{1} << 34), .per_token = bytes(20'000), .per_sequence = bytes(50'000'000)});
  }
  model.embedding_bytes = bytes(1 << 30);
  model.processes = *rc::gen::elementOf(std::vector<int>{1, ranks});
  const uint64_t per_row = bytes(100'000), per_request = bytes(100'000);
  model.workspace = [=](const EngineConfig& config, int) {
    return per_row * static_cast<uint64_t>(config.max_prefill_tokens) +
           per_request * static_cast<uint64_t>(config.max_running_requests);
  };
  return model;
}

EngineConfig AnyFlags() {
  EngineConfig config{.context_length = Given(1 << 20),
                      .max_running_requests = Given(65536),
                      .max_total_tokens = Given(int64_t{1} << 36),
                      .chunked_prefill_size = Given(1 << 20),
                      .max_prefill_tokens = Given(1 << 20),
                      .prefix_cache = *rc::gen::arbitrary<bool>(),
                      .state_snapshots = Given(65536),
                      .state_checkpoint_interval = 64 * Given(1000)};
  config.mem_fraction_static = *rc::gen::inRange(0, 101) / 100.0;
  return config;
}

Machine AnyMachine() {
  const auto memory = *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 38);
  return {.memory_bytes = memory, .available_bytes = *rc::gen::inRange<uint64_t>(0, memory + 1), .cores = 3};
}

struct Seen {
  int fit = 0, advised = 0, hopeless = 0;
};

void CheckAny(Seen& seen) {
  const ModelCosts model = AnyModel();
  const EngineConfig given = AnyFlags();
  const Machine machine = AnyMachine();
  const StatusOr<Sized> sized = DecideSizes(given, model, machine);
  RC_PRE(sized.ok());
  const EngineConfig& c = sized->config;
  const MemoryPlan& plan = sized->memory;

  // What was given stays; what was not is decided.
  const auto kept = [](int64_t asked, int64_t got) { return asked == 0 ? got > 0 : got == asked; };
  RC_ASSERT(kept(given.context_length, c.context_length));
  RC_ASSERT(kept(given.max_running_requests, c.max_running_requests));
  RC_ASSERT(kept(given.chunked_prefill_size, c.chunked_prefill_size));
  RC_ASSERT(c.max_total_tokens % 64 == 0 && c.max_total_tokens > 0);
  if (given.max_total_tokens > 0) RC_ASSERT(c.max_total_tokens - given.max_total_tokens < 64);
  if (c.prefix_cache) RC_ASSERT(kept(given.state_snapshots, c.state_snapshots));
  RC_ASSERT(plan.LongestRequest() > 0 && plan.LongestRequest() <= model.max_context);
  RC_ASSERT(plan.tokens == c.max_total_tokens && plan.sequences == c.max_running_requests);

  const Status fits = CheckFits(given, *sized, model, machine);
  RC_ASSERT(fits.ok() == plan.Fits());
  if (fits.ok()) {
    ++seen.fit;
    RC_ASSERT(plan.Total() <= machine.available_bytes);
    return;
  }
  const std::optional<EngineConfig> advised = test::Advised(given, fits.message());
  if (!advised) {
    ++seen.hopeless;
    return;
  }
  ++seen.advised;
  const StatusOr<Sized> again = DecideSizes(*advised, model, machine);
  RC_ASSERT(again.ok());
  RC_ASSERT(again->memory.Fits());
}

TEST(MemoryProperty, PlansStayWithinTheBudgetOrAreRefusedWithFlagsThatDo) {
  constexpr int kCases = 2000;
  Seen seen;
  rc::detail::TestParams params;
  params.seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  params.maxSuccess = kCases;
  const rc::detail::TestResult result =
      rc::detail::checkTestable([&] { CheckAny(seen); }, rc::detail::TestMetadata(), params);
  if (!result.is<rc::detail::SuccessResult>()) {
    rc::detail::printResultMessage(result, std::cerr);
    FAIL();
  }
  std::cerr << seen.fit << " fit, " << seen.advised << " refused with advice, " << seen.hopeless
            << " without\n";
  EXPECT_GT(seen.fit, kCases / 20);
  EXPECT_GT(seen.advised, kCases / 20);
}

}  // namespace
}  // namespace perigee::engine
