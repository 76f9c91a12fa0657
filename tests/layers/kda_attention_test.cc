#include "layers/kda_attention.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "layers/weight_scope.h"
#include "testing/safetensors_writer.h"

namespace perigee::layers {
namespace {

// The 48B model's KDA: 32 heads of 128, gates of rank 128. Its hidden width does not matter here.
constexpr int64_t kHeads = 32;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kConvWidth = 4;
constexpr int64_t kHidden = 4;

Checkpoint WriteZeros(const test::TempFolder& folder) {
  constexpr int64_t kWidth = kHeads * kHeadDim;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"q_proj.weight", {kWidth, kHidden}},
      {"k_proj.weight", {kWidth, kHidden}},
      {"v_proj.weight", {kWidth, kHidden}},
      {"b_proj.weight", {kHeads, kHidden}},
      {"f_a_proj.weight", {kHeadDim, kHidden}},
      {"g_a_proj.weight", {kHeadDim, kHidden}},
      {"f_b_proj.weight", {kWidth, kHeadDim}},
      {"g_b_proj.weight", {kWidth, kHeadDim}},
      {"o_proj.weight", {kHidden, kWidth}},
      {"q_conv1d.weight", {kWidth, 1, kConvWidth}},
      {"k_conv1d.weight", {kWidth, 1, kConvWidth}},
      {"v_conv1d.weight", {kWidth, 1, kConvWidth}},
      {"dt_bias", {kWidth}},
      {"A_log", {1, 1, kHeads, 1}},
      {"o_norm.weight", {kHeadDim}},
  };
  std::vector<test::WrittenTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    size_t elements = 1;
    for (const int64_t d : shape) elements *= static_cast<size_t>(d);
    tensors.push_back({name, "BF16", shape, std::string(2 * elements, '\0')});
  }
  folder.Write("model.safetensors", test::SafetensorsFile(tensors));
  StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.status().message());
  return std::move(checkpoint).value();
}

// Outputs of the fused input projection: q, k, v channels of the share; f_a and g_a whole; its b.
TEST(KdaAttention, SplitSizesOfThe48B) {
  const test::TempFolder folder;
  const CheckpointWeights source(WriteZeros(folder));
  LoadProgress progress;
  const WeightScope weights(source, progress, Device::kCpu);
  const KdaOptions options{
      .num_heads = kHeads, .head_dim = kHeadDim, .gate_rank = kHeadDim, .conv_width = kConvWidth};
  const auto split = [&](const Shard& shard) { return KdaAttention(options, shard, weights).InProjSplit(); };
  for (int64_t share = 0; share < 4; ++share) {
    // tp 4, C 4: every rank holds the one attention shard, and a quarter of the heads here.
    EXPECT_EQ(split({.total = 4, .share = share, .first_held = 0, .num_held = 4}),
              (std::vector<int64_t>{3072, 256, 8}));
  }
  // tp 8, C 4: every rank cuts, none twice.
  EXPECT_EQ(split({.total = 8, .share = 6, .first_held = 4, .num_held = 4}),
            (std::vector<int64_t>{1536, 256, 4}));
  EXPECT_EQ(split({}), (std::vector<int64_t>{12288, 256, 32}));
}

}  // namespace
}  // namespace perigee::layers
