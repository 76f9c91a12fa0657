// What a running engine allocates is what was planned before its weights were read.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "testing/device.h"

namespace perigee::engine {
namespace {

struct Spread {
  std::string model;
  int tp = 1;
  int cp = 1;
  int ep = 1;
  std::string layout;
  std::string form;
  std::string kda;
  Device device = Device::kCpu;
};

EngineConfig Config(const Spread& s) {
  EngineConfig config{.model_path = s.model,
                      .context_length = 500,
                      .max_running_requests = 5,
                      .max_total_tokens = 1280,
                      .chunked_prefill_size = 192,
                      .threads = 3};
  config.state_snapshots = 3;
  config.device = s.device;
  config.parallel = {.tp = s.tp, .attn_cp = s.cp, .ep = s.ep, .enable_prefill_cp = s.cp > 1};
  if (s.cp > 1) config.parallel.cp_strategy = "zigzag";
  config.parallel.cp_layout = s.layout;
  config.parallel.cp_kda_mode = s.kda;
  if (s.kda == "state" || s.kda == "auto") config.parallel.deterministic = false;
  if (!s.form.empty()) {
    config.parallel.cp_attn_form = s.form;
    config.parallel.deterministic = false;
  }
  return config;
}

// The largest steps: full chunks in which every row is wanted, and as many answers at once as may run.
void RunLargestSteps(Engine& engine) {
  std::vector<std::promise<Status>> done(7);
  for (size_t i = 0; i < done.size(); ++i) {
    Request request{.prompt = std::vector<TokenId>(i == 0 ? 450 : 40 + i, 7)};
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = 8;
    request.sampling.ignore_eos = true;
    request.sampling.prompt_logprobs = true;
    const auto id = engine.Submit(std::move(request), [&, i](const Output& output) {
      if (output.finish != FinishReason::kNone) done[i].set_value(output.status);
    });
    ASSERT_TRUE(id.ok()) << id.status().message();
  }
  for (auto& d : done) EXPECT_TRUE(d.get_future().get().ok());
}

class MemoryPlanTest : public ::testing::TestWithParam<Spread> {};

TEST_P(MemoryPlanTest, PeakIsThePlanToTheByte) {
  if (GetParam().device != Device::kCpu) SKIP_WITHOUT_GPU();
  auto engine = StartEngine(Config(GetParam()));
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const MemoryPlan& plan = (*engine)->model_info().memory;
  ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(GetParam().tp));
  RunLargestSteps(**engine);
  const std::vector<RankMemory> peak = (*engine)->memory_peak();
  ASSERT_EQ(peak.size(), plan.ranks.size());
  for (size_t r = 0; r < peak.size(); ++r) {
    EXPECT_EQ(peak[r].weights, plan.ranks[r].weights) << r;
    EXPECT_EQ(peak[r].latents, plan.ranks[r].latents) << r;
    // Snapshots are slots of the same pool.
    EXPECT_EQ(peak[r].states, plan.ranks[r].states + plan.ranks[r].snapshots) << r;
    EXPECT_GT(plan.ranks[r].snapshots, 0u);
    EXPECT_EQ(peak[r].workspace, plan.ranks[r].workspace) << r;
    EXPECT_GT(peak[r].workspace, 0u);
  }
}

const std::string kRandom = PERIGEE_TEST_DATA "/random/";
INSTANTIATE_TEST_SUITE_P(
    Models, MemoryPlanTest,
    ::testing::Values(Spread{PERIGEE_MODELS "/tiny-kimi-linear"},
                      Spread{PERIGEE_MODELS "/tiny-kimi-linear", 4, 4}, Spread{kRandom + "odd_f32"},
                      Spread{kRandom + "sparse_f16"}, Spread{kRandom + "six_heads", 3},
                      Spread{kRandom + "six_heads", 2, 2}, Spread{kRandom + "eight_heads", 4, 2},
                      Spread{kRandom + "eight_heads", 8, 8},
                      Spread{kRandom + "eight_heads", 4, 4, 1, "replicated"},
                      Spread{kRandom + "eight_heads", 4, 1, 4}, Spread{kRandom + "eight_heads", 4, 4, 2},
                      Spread{kRandom + "eight_heads", 1, 1, 1, "", "absorbed"},
                      Spread{kRandom + "eight_heads", 2, 2, 1, "", "auto"},
                      Spread{kRandom + "eight_heads", 4, 4, 1, "", "", "state"},
                      Spread{kRandom + "eight_heads", 4, 2, 1, "", "", "auto"}));

INSTANTIATE_TEST_SUITE_P(Cuda, MemoryPlanTest,
                         ::testing::Values(Spread{.model = PERIGEE_MODELS "/tiny-kimi-linear",
                                                  .device = Device::kCuda},
                                           Spread{.model = kRandom + "odd_f32", .device = Device::kCuda}));

}  // namespace
}  // namespace perigee::engine
