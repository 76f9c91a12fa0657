#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/kimi_linear/config.h"
#include "model/kimi_linear/model.h"
#include "testing/random.h"

namespace perigee::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KimiLinearConfig Published() {
  return NamedShape("kimi-linear-48b").value();
}

std::map<std::string, ExpectedTensor> ByName(const KimiLinearConfig& config) {
  std::map<std::string, ExpectedTensor> out;
  for (ExpectedTensor& t : ExpectedTensors(config)) {
    const std::string name = t.name;
    EXPECT_TRUE(out.emplace(name, std::move(t)).second) << name;
  }
  return out;
}

TEST(NamedShape, LayerMapIsTheDocumentedOne) {
  const KimiLinearConfig c = Published();
  std::vector<int64_t> mla, dense;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    if (!c.is_kda[static_cast<size_t>(l)]) mla.push_back(l);
    if (!c.is_moe[static_cast<size_t>(l)]) dense.push_back(l);
  }
  EXPECT_THAT(mla, ElementsAre(3, 7, 11, 15, 19, 23, 26));
  EXPECT_THAT(dense, ElementsAre(0));
  EXPECT_EQ(c.NumKdaLayers(), 20);
  EXPECT_EQ(c.NumMoeLayers(), 26);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(163586));
  EXPECT_EQ(c.bos_token_id, 163584);
  EXPECT_EQ(c.pad_token_id, 163839);
  EXPECT_EQ(c.model_max_length, 1048576);
  EXPECT_EQ(c.routed_scaling_factor, 2.446);
  EXPECT_THAT(c.unknown_keys, ElementsAre());
}

TEST(NamedShape, UnknownNamesListTheKnown) {
  EXPECT_THAT(NamedShape("gpt").status().message(),
              HasSubstr("\"gpt\" is not known; accepted: kimi-linear-48b"));
}

// At tp 4 a rank has 8 of the KDA heads, and latents whole.
TEST(KimiLinearCacheShape, RankOfFour) {
  const parallel::Shard shard{.total = 4, .share = 3, .first_held = 0, .num_held = 4};
  const CacheShape shape = KimiLinearCacheShape(Published(), shard);
  EXPECT_EQ(shape.state_layers, 20);
  EXPECT_EQ(shape.recurrent_floats, 8 * 128 * 128);
  EXPECT_EQ(shape.conv_floats, 3 * 3072);
  EXPECT_EQ(shape.kv_layers, 7);
  EXPECT_EQ(shape.kv_width, 576);
}

TEST(CountModel, PublishedCounts) {
  const ModelCounts n = CountModel(Published());
  EXPECT_EQ(n.parameters, 49'122'681'728u);
  EXPECT_EQ(n.active_gemm_weights, 3'105'767'424u);
  EXPECT_EQ(n.bf16_checkpoint_bytes, 98'245'528'576u);
  EXPECT_EQ(n.latent_floats_per_token * 2, 8'064u);
  EXPECT_EQ(n.state_floats_per_sequence * 4, 41'943'040u);
  EXPECT_EQ(n.conv_floats_per_sequence * 2, 1'474'560u);
}

TEST(ExpectedTensors, PublishedNamesAndShapes) {
  const std::map<std::string, ExpectedTensor> t = ByName(Published());
  EXPECT_EQ(t.size(), 20'493u);
  const auto shape = [&](const std::string& name) { return t.at(name).shape; };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape("model.embed_tokens.weight"), (Shape{163840, 2304}));
  EXPECT_EQ(shape("model.norm.weight"), (Shape{2304}));
  EXPECT_EQ(shape("lm_head.weight"), (Shape{163840, 2304}));
  const std::string kda = "model.layers.25.self_attn.", mla = "model.layers.26.self_attn.";
  EXPECT_EQ(shape("model.layers.25.input_layernorm.weight"), (Shape{2304}));
  EXPECT_EQ(shape("model.layers.25.post_attention_layernorm.weight"), (Shape{2304}));
  EXPECT_EQ(shape(kda + "q_proj.weight"), (Shape{4096, 2304}));
  EXPECT_EQ(shape(kda + "v_conv1d.weight"), (Shape{4096, 1, 4}));
  EXPECT_EQ(shape(kda + "f_a_proj.weight"), (Shape{128, 2304}));
  EXPECT_EQ(shape(kda + "f_b_proj.weight"), (Shape{4096, 128}));
  EXPECT_EQ(shape(kda + "dt_bias"), (Shape{4096}));
  EXPECT_EQ(shape(kda + "A_log"), (Shape{1, 1, 32, 1}));
  EXPECT_EQ(shape(kda + "b_proj.weight"), (Shape{32, 2304}));
  EXPECT_EQ(shape(kda + "g_a_proj.weight"), (Shape{128, 2304}));
  EXPECT_EQ(shape(kda + "g_b_proj.weight"), (Shape{4096, 128}));
  EXPECT_EQ(shape(kda + "o_norm.weight"), (Shape{128}));
  EXPECT_EQ(shape(kda + "o_proj.weight"), (Shape{2304, 4096}));
  EXPECT_EQ(shape(mla + "q_proj.weight"), (Shape{6144, 2304}));
  EXPECT_EQ(shape(mla + "kv_a_proj_with_mqa.weight"), (Shape{576, 2304}));
  EXPECT_EQ(shape(mla + "kv_a_layernorm.weight"), (Shape{512}));
  EXPECT_EQ(shape(mla + "kv_b_proj.weight"), (Shape{8192, 512}));
  EXPECT_EQ(shape(mla + "o_proj.weight"), (Shape{2304, 4096}));
  EXPECT_FALSE(t.contains(mla + "A_log"));
  EXPECT_EQ(shape("model.layers.0.mlp.gate_proj.weight"), (Shape{9216, 2304}));
  EXPECT_EQ(shape("model.layers.0.mlp.down_proj.weight"), (Shape{2304, 9216}));
  const std::string moe = "model.layers.26.block_sparse_moe.";
  EXPECT_EQ(shape(moe + "gate.weight"), (Shape{256, 2304}));
  EXPECT_EQ(shape(moe + "gate.e_score_correction_bias"), (Shape{256}));
  EXPECT_EQ(shape(moe + "experts.255.w1.weight"), (Shape{1024, 2304}));
  EXPECT_EQ(shape(moe + "experts.255.w2.weight"), (Shape{2304, 1024}));
  EXPECT_EQ(shape(moe + "experts.255.w3.weight"), (Shape{1024, 2304}));
  EXPECT_EQ(shape(moe + "shared_experts.up_proj.weight"), (Shape{1024, 2304}));
  EXPECT_EQ(shape(moe + "shared_experts.down_proj.weight"), (Shape{2304, 1024}));
}

KimiLinearConfig RandomConfig(test::Random& random) {
  KimiLinearConfig c;
  const auto pick = [&](int64_t low, int64_t high) { return low + random.Below(high - low + 1); };
  c.num_hidden_layers = pick(1, 6);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    c.is_kda.push_back(random.Below(3) > 0);
    c.is_moe.push_back(random.Below(3) > 0);
  }
  for (int64_t* size :
       {&c.hidden_size, &c.intermediate_size, &c.vocab_size, &c.kda_num_heads, &c.kda_head_dim,
        &c.short_conv_kernel_size, &c.num_attention_heads, &c.kv_lora_rank, &c.qk_nope_head_dim,
        &c.qk_rope_head_dim, &c.v_head_dim, &c.num_experts, &c.moe_intermediate_size}) {
    *size = pick(1, 9);
  }
  c.num_shared_experts = pick(0, 2);
  c.num_experts_per_token = pick(1, c.num_experts);
  return c;
}

// The closed forms against the list, on shapes where no two sizes coincide by design.
TEST(CountModel, AgreesWithTheTensorList) {
  test::Random random(3);
  for (int round = 0; round < 200; ++round) {
    const KimiLinearConfig c = RandomConfig(random);
    uint64_t parameters = 0, bytes = 0, active = 0;
    for (const ExpectedTensor& t : ExpectedTensors(c)) {
      const auto n = static_cast<uint64_t>(t.NumElements());
      const bool is_float = t.name.ends_with("A_log") || t.name.ends_with("dt_bias");
      parameters += n;
      bytes += n * (is_float ? 4 : 2);
      const size_t expert = t.name.find(".experts.");
      // Matrices are what a token multiplies; of the routed experts, the first ones stand for the chosen.
      const bool chosen =
          expert == std::string::npos || std::stoll(t.name.substr(expert + 9)) < c.num_experts_per_token;
      if (t.shape.size() == 2 && chosen && t.name != "model.embed_tokens.weight") active += n;
    }
    const ModelCounts n = CountModel(c);
    ASSERT_EQ(n.parameters, parameters);
    ASSERT_EQ(n.bf16_checkpoint_bytes, bytes);
    ASSERT_EQ(n.active_gemm_weights, active);
  }
}

TEST(ExpectedTensors, PrunedExpertsFollowTheConfig) {
  KimiLinearConfig c = Published();
  c.num_experts = 200;
  const std::map<std::string, ExpectedTensor> t = ByName(c);
  EXPECT_EQ(t.size(), 20'493u - 26 * 3 * 56);
  EXPECT_EQ(t.at("model.layers.1.block_sparse_moe.gate.weight").shape, (std::vector<int64_t>{200, 2304}));
  EXPECT_FALSE(t.contains("model.layers.1.block_sparse_moe.experts.200.w1.weight"));
  EXPECT_EQ(CountModel(c).active_gemm_weights, 3'105'767'424u - 26 * 56 * 2304);
}

}  // namespace
}  // namespace perigee::model
