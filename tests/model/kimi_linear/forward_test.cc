// The forward pass as a whole: against float64 goldens, and against itself when the same tokens come in other
// pieces, in other company or on other threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/registry.h"
#include "testing/model_harness.h"

namespace perigee::testing {
namespace {

using Sequence = ModelHarness::Sequence;

struct Folder {
  std::string name;
  std::string path;
  std::string golden;
};

// The bundled model and every random one under tests/data/random.
std::vector<Folder> Folders() {
  std::vector<Folder> folders = {{"tiny", std::string(PERIGEE_MODELS) + "/tiny-kimi-linear",
                                  std::string(PERIGEE_TEST_DATA) + "/golden/tiny-kimi-linear.json"}};
  std::vector<std::filesystem::path> random;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PERIGEE_TEST_DATA) + "/random")) {
    if (entry.is_directory()) random.push_back(entry.path());
  }
  std::sort(random.begin(), random.end());
  for (const auto& p : random)
    folders.push_back({p.filename().string(), p.string(), (p / "golden.json").string()});
  return folders;
}

nlohmann::json Cases(const Folder& folder) {
  std::ifstream file(folder.golden);
  return nlohmann::json::parse(file)["cases"];
}

class ForwardTest : public ::testing::TestWithParam<Folder> {};

// Largest difference from a golden case: of the given ids, and of the most probable ones after the last.
double WorstAgainst(const nlohmann::json& golden, ModelHarness& harness) {
  const std::vector<int32_t> ids = golden["ids"];
  const std::vector<float> logits = harness.Run({{ids}})[0];
  double worst = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    const float* row = logits.data() + (i - 1) * static_cast<size_t>(harness.vocab_size());
    const double logprob = LogProbability(row, harness.vocab_size(), ids[i]);
    worst = std::max(worst, std::abs(logprob - golden["logprobs"][i].get<double>()));
  }
  const float* last = logits.data() + (ids.size() - 1) * static_cast<size_t>(harness.vocab_size());
  for (const auto& [id, logprob] : golden["top"].get<std::vector<std::pair<int32_t, double>>>()) {
    worst = std::max(worst, std::abs(LogProbability(last, harness.vocab_size(), id) - logprob));
  }
  return worst;
}

TEST_P(ForwardTest, LogProbabilitiesEqualTheFloat64Reference) {
  ModelHarness harness(GetParam().path, 2);
  for (const auto& golden : Cases(GetParam())) {
    const double worst = WorstAgainst(golden, harness);
    RecordProperty("worst_" + golden.value("name", "case"), std::to_string(worst));
    EXPECT_LE(worst, golden["ids"].size() <= 300 ? 1e-4 : 5e-4) << golden["name"];
  }
}

// KDA's state passed between as many ranks as the model's heads allow.
TEST_P(ForwardTest, TheStateModeKeepsToTheFloat64Reference) {
  for (const int ranks : {2, 4, 8}) {
    for (const parallel::CpStrategy strategy : {parallel::Zigzag, parallel::Contiguous}) {
      const model::ModelSizes sizes = (*model::OpenModel(GetParam().path))->footprint().sizes();
      if (sizes.kda_heads % ranks != 0 || sizes.mla_heads % ranks != 0) continue;
      ModelHarness harness(
          GetParam().path, 1,
          {.tp = ranks, .attn_cp = ranks, .prefill_mode = batch::StepMode::kState, .strategy = strategy});
      for (const auto& golden : Cases(GetParam())) {
        EXPECT_LE(WorstAgainst(golden, harness), 5e-4) << golden["name"] << " on " << ranks << " ranks";
      }
    }
  }
}

// A prompt of about 200 tokens that the model has not seen as a whole, with its own neighbours.
std::vector<std::vector<int32_t>> SomePrompts(const Folder& folder, size_t count, size_t length) {
  std::vector<int32_t> pool;
  for (const auto& golden : Cases(folder)) {
    for (const int32_t id : golden["ids"]) pool.push_back(id);
  }
  std::vector<std::vector<int32_t>> prompts(count);
  for (size_t p = 0; p < count; ++p) {
    for (size_t i = 0; i < length + p * 7; ++i)
      prompts[p].push_back(pool[(p * 131 + i * (p + 1)) % pool.size()]);
  }
  return prompts;
}

TEST_P(ForwardTest, PiecesOfAPromptGiveTheSameLogProbabilities) {
  ModelHarness harness(GetParam().path, 2);
  const std::vector<int32_t> ids = SomePrompts(GetParam(), 1, 201)[0];
  const std::vector<float> whole = harness.Run({{ids}})[0];
  for (const int64_t piece : {1, 3, 64, 100}) {
    const std::vector<float> cut = harness.Run({{ids, piece}})[0];
    ASSERT_EQ(cut.size(), whole.size());
    if (piece == 64) {
      EXPECT_EQ(cut, whole);
    } else {
      EXPECT_LE(WorstLogProbDifference(whole, cut, harness.vocab_size()), 1e-4) << "pieces of " << piece;
    }
  }
}

TEST_P(ForwardTest, EverySplitBetweenPrefillAndDecodeAgrees) {
  ModelHarness harness(GetParam().path, 2);
  const std::vector<int32_t> ids = SomePrompts(GetParam(), 1, 140)[0];
  const std::vector<float> whole = harness.Run({{ids}})[0];
  for (const int64_t prompt : {1, 2, 3, 5, 63, 64, 65, 127, 128, 129}) {
    const auto decode_rows = static_cast<int64_t>(ids.size()) - prompt;
    const std::vector<float> stepped = harness.Run({{ids, 0, decode_rows}})[0];
    EXPECT_LE(WorstLogProbDifference(whole, stepped, harness.vocab_size()), 1e-4) << "prompt of " << prompt;
  }
}

TEST_P(ForwardTest, NeighboursThreadsAndChunksOf64DoNotChangeABit) {
  const auto prompts = SomePrompts(GetParam(), 8, 150);
  std::vector<std::vector<float>> alone;
  {
    ModelHarness harness(GetParam().path, 1);
    for (const auto& ids : prompts) alone.push_back(harness.Run({{ids, 0, 12}})[0]);
  }
  for (const int threads : {1, 2, 3}) {
    ModelHarness harness(GetParam().path, threads);
    std::vector<Sequence> together;
    for (size_t p = 0; p < prompts.size(); ++p) together.push_back({prompts[p], p % 2 == 0 ? 64 : 0, 12});
    EXPECT_EQ(harness.Run(together), alone) << threads << " threads";
    std::reverse(together.begin(), together.end());
    std::vector<std::vector<float>> reversed = harness.Run(together);
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_EQ(reversed, alone) << threads << " threads, other slots and order";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ForwardTest, ::testing::ValuesIn(Folders()), [](const auto& tested) {
  std::string name = tested.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

}  // namespace
}  // namespace perigee::testing
