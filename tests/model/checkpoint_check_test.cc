#include "model/checkpoint_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/kimi_linear/config.h"
#include "testing/safetensors_writer.h"

namespace perigee::model {
namespace {

using test::WrittenTensor;
using ::testing::HasSubstr;

const std::string kBundled = PERIGEE_MODELS "/tiny-kimi-linear";

// A dense KDA layer and an MLA layer with experts; no two sizes are equal.
KimiLinearConfig SmallConfig() {
  KimiLinearConfig c;
  c.hidden_size = 5;
  c.num_hidden_layers = 2;
  c.intermediate_size = 6;
  c.vocab_size = 7;
  c.kda_num_heads = 2;
  c.kda_head_dim = 4;
  c.short_conv_kernel_size = 3;
  c.is_kda = {true, false};
  c.num_attention_heads = 2;
  c.kv_lora_rank = 9;
  c.qk_nope_head_dim = 3;
  c.qk_rope_head_dim = 1;
  c.v_head_dim = 2;
  c.is_moe = {false, true};
  c.num_experts = 3;
  c.num_experts_per_token = 2;
  c.num_shared_experts = 1;
  c.moe_intermediate_size = 8;
  return c;
}

std::vector<WrittenTensor> Written(const KimiLinearConfig& config) {
  std::vector<WrittenTensor> out;
  for (const ExpectedTensor& t : ExpectedTensors(config))
    out.push_back({t.name, "BF16", t.shape, std::string(static_cast<size_t>(2 * t.NumElements()), '\0')});
  return out;
}

WrittenTensor& Named(std::vector<WrittenTensor>& tensors, std::string_view name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  EXPECT_NE(at, tensors.end()) << name;
  return *at;
}

void Resize(WrittenTensor& tensor, std::vector<int64_t> shape) {
  size_t bytes = 2;
  for (int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  tensor.shape = std::move(shape);
  tensor.bytes.resize(bytes);
}

// What the check says about SmallConfig when these are the tensors.
Status Check(const std::vector<WrittenTensor>& tensors) {
  test::TempFolder folder;
  folder.Write("model.safetensors", test::SafetensorsFile(tensors));
  const StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const Status status = CheckCheckpoint(*checkpoint, ExpectedTensors(SmallConfig()));
  if (!status.ok()) {
    EXPECT_EQ(status.message().find(folder.path() + "/model.safetensors: tensor \""), 0u) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  return status;
}

TEST(CheckCheckpoint, BundledModelHoldsWhatItsConfigNeeds) {
  const StatusOr<KimiLinearConfig> config = ReadKimiLinearConfig(kBundled);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->unknown_keys.empty());
  const StatusOr<Checkpoint> checkpoint = Checkpoint::Open(kBundled);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const Status status = CheckCheckpoint(*checkpoint, ExpectedTensors(*config));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(checkpoint->TotalBytes(), 16642304u);
}

TEST(CheckCheckpoint, BundledModelWithMoreExpertsLacksThem) {
  KimiLinearConfig config = ReadKimiLinearConfig(kBundled).value();
  config.num_experts = 17;
  const Checkpoint checkpoint = Checkpoint::Open(kBundled).value();
  const Status status = CheckCheckpoint(checkpoint, ExpectedTensors(config));
  EXPECT_THAT(status.message(),
              HasSubstr("/model.safetensors.index.json: tensor "
                        "\"model.layers.1.block_sparse_moe.experts.16.w1.weight\" [64, 192] is missing "
                        "(25 problems in all: 15 missing, 10 of wrong shape, 0 unexpected)"));
}

TEST(CheckCheckpoint, AcceptsExactlyTheExpectedTensors) {
  const Status status = Check(Written(SmallConfig()));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(CheckCheckpoint, FoldedVectorsAreAccepted) {
  const std::string attention = "model.layers.0.self_attn.";
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {2, 1}, {1, 1, 2, 1}}) {
    std::vector<WrittenTensor> tensors = Written(SmallConfig());
    Resize(Named(tensors, attention + "A_log"), shape);
    Resize(Named(tensors, attention + "dt_bias"), {2, 4});
    Resize(Named(tensors, attention + "q_conv1d.weight"), {8, 3});
    const Status status = Check(tensors);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(CheckCheckpoint, LeftoverRotaryBuffersAreIgnored) {
  std::vector<WrittenTensor> tensors = Written(SmallConfig());
  tensors.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", "F32", {2}, std::string(8, '\0')});
  const Status status = Check(tensors);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(CheckCheckpoint, EveryTensorIsNeededInItsShape) {
  const std::vector<WrittenTensor> whole = Written(SmallConfig());
  for (size_t i = 0; i < whole.size(); ++i) {
    SCOPED_TRACE(whole[i].name);
    std::vector<WrittenTensor> tensors = whole;
    tensors.erase(tensors.begin() + static_cast<int64_t>(i));
    const std::string missing = Check(tensors).message();
    EXPECT_THAT(missing, HasSubstr("\"" + whole[i].name + "\""));
    EXPECT_TRUE(missing.ends_with("is missing")) << missing;

    tensors = whole;
    std::vector<int64_t> shape = whole[i].shape;
    shape.front() += 1;
    Resize(tensors[i], shape);
    const std::string larger = Check(tensors).message();
    EXPECT_THAT(larger, HasSubstr("\"" + whole[i].name + "\": shape "));
    EXPECT_THAT(larger, HasSubstr(", expected "));
  }
}

TEST(CheckCheckpoint, TransposedAndPaddedShapesAreRefused) {
  const struct {
    const char* name;
    std::vector<int64_t> shape;
    const char* expected;
  } cases[] = {
      {"model.layers.0.self_attn.o_proj.weight", {8, 5}, "shape [8, 5], expected [5, 8]"},
      {"model.layers.0.self_attn.q_conv1d.weight", {3, 8}, "shape [3, 8], expected [8, 1, 3]"},
      {"model.layers.0.self_attn.A_log", {128}, "shape [128], expected 2 elements"},
      {"model.norm.weight", {1, 5}, "shape [1, 5], expected [5]"},
      {"model.norm.weight", {0}, "shape [0], expected [5]"},
      {"model.layers.0.self_attn.dt_bias", {}, "shape [], expected 8 elements"},
  };
  for (const auto& c : cases) {
    std::vector<WrittenTensor> tensors = Written(SmallConfig());
    Resize(Named(tensors, c.name), c.shape);
    EXPECT_THAT(Check(tensors).message(), HasSubstr(std::string("\"") + c.name + "\": " + c.expected));
  }
}

TEST(CheckCheckpoint, UnexpectedTensorsAreRefused) {
  for (const char* name : {"model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.g_b_proj.bias",
                           "model.layers.1.block_sparse_moe.experts.3.w1.weight", "vision_tower.weight"}) {
    std::vector<WrittenTensor> tensors = Written(SmallConfig());
    tensors.push_back({name, "F16", {2}, "1234"});
    EXPECT_THAT(Check(tensors).message(),
                HasSubstr(std::string("\"") + name + "\" [2] is not part of this model"));
  }
}

TEST(CheckCheckpoint, ManyProblemsAreCounted) {
  std::vector<WrittenTensor> tensors = Written(SmallConfig());
  Named(tensors, "lm_head.weight").name = "head.weight";
  Resize(Named(tensors, "model.norm.weight"), {6});
  Resize(Named(tensors, "model.layers.1.input_layernorm.weight"), {4});
  tensors.push_back({"a", "F16", {1}, "12"});
  EXPECT_THAT(Check(tensors).message(),
              HasSubstr("\"lm_head.weight\" [7, 5] is missing (5 problems in all: 1 missing, 2 of wrong "
                        "shape, 2 unexpected)"));
}

}  // namespace
}  // namespace perigee::model
