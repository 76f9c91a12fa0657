#include "model/kimi_linear/drawn_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "kernels/moe/moe.h"
#include "kernels/norm/norm.h"
#include "layers/weight_scope.h"
#include "testing/kernel_fixture.h"

namespace perigee::model {
namespace {

KimiLinearConfig Config() {
  StatusOr<KimiLinearConfig> config = ReadKimiLinearConfig(PERIGEE_MODELS "/tiny-kimi-linear");
  EXPECT_TRUE(config.ok());
  return std::move(config).value();
}

TEST(DrawKimiLinear, DecaysLieWhereTheModelIsInitialised) {
  const KimiLinearConfig config = Config();
  const layers::DrawnWeights weights(DrawKimiLinear(config, 3));
  for (const float a : weights.Floats("model.layers.0.self_attn.A_log", {0, config.kda_num_heads})) {
    EXPECT_GE(std::exp(a), 1);
    EXPECT_LE(std::exp(a), 16.001);
  }
  const std::vector<float> dt =
      weights.Floats("model.layers.0.self_attn.dt_bias", {0, config.kda_num_heads * config.kda_head_dim});
  for (const float x : dt) {
    EXPECT_GE(std::log1p(std::exp(x)), 0.00099);
    EXPECT_LE(std::log1p(std::exp(x)), 0.1);
  }
}

TEST(DrawKimiLinear, EveryTensorIsThereAndHasItsOwnSeed) {
  const KimiLinearConfig config = Config();
  const auto drawn = DrawKimiLinear(config, 0);
  EXPECT_EQ(drawn.size(), ExpectedTensors(config).size());
  std::set<uint64_t> seeds;
  for (const auto& [name, tensor] : drawn) seeds.insert(tensor.seed);
  EXPECT_EQ(seeds.size(), drawn.size());
}

// Rows of a normed embedding through a router: no expert is left out, none takes half of the work.
TEST(DrawKimiLinear, RoutersUseAllExperts) {
  const KimiLinearConfig config = Config();
  const layers::DrawnWeights weights(DrawKimiLinear(config, 0));
  const test::KernelRunner runner;
  const kernels::KernelContext& context = runner.context();
  const int64_t rows = 512;
  const layers::WeightTable table = weights.Table("model.embed_tokens.weight", Device::kCpu, nullptr);
  std::vector<int32_t> ids(rows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const Matrix x = context.Room(rows, config.hidden_size);
  kernels::EmbeddingLookup(context, table.view, ids, x);
  const size_t layer = static_cast<size_t>(std::find(config.is_moe.begin(), config.is_moe.end(), true) -
                                           config.is_moe.begin());
  const std::string prefix = "model.layers." + std::to_string(layer) + ".block_sparse_moe.gate.";
  const layers::MatrixPart part{prefix + "weight", std::nullopt, std::nullopt};
  const kernels::PackedWeight gate = weights.Pack({&part, 1}, Device::kCpu, nullptr);
  const Matrix logits = context.Room(rows, config.num_experts, DType::kF32);
  Gemm(context, x, gate, logits);
  const std::vector<float> bias = weights.Floats(prefix + "e_score_correction_bias", {0, config.num_experts});
  const kernels::Routing routing = RouteTopK(context, logits, bias, {.top_k = config.num_experts_per_token});
  std::vector<int64_t> uses(static_cast<size_t>(config.num_experts));
  for (const int32_t e : routing.experts) ++uses[static_cast<size_t>(e)];
  const double fair = static_cast<double>(routing.experts.size()) / static_cast<double>(config.num_experts);
  for (const int64_t n : uses) {
    EXPECT_GT(n, fair / 3);
    EXPECT_LT(n, fair * 3);
  }
}

}  // namespace
}  // namespace perigee::model
