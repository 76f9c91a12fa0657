#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "e2e/process.h"

namespace perigee::testing {
namespace {

using Json = nlohmann::json;

constexpr char kModel[] = PERIGEE_MODELS "/tiny-kimi-linear";
constexpr char kGolden[] = PERIGEE_TEST_DATA "/golden/tiny-kimi-linear.json";

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Standard output of perigee score on `input` with more flags.
std::string Score(const std::string& input, std::vector<std::string> flags = {}) {
  std::vector<std::string> args = {PERIGEE_PROGRAM, "score", "--model-path", kModel, "--input", input};
  args.insert(args.end(), flags.begin(), flags.end());
  const Finished finished = RunToEnd(args);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  return finished.out;
}

// float64 references: a case of at most 300 tokens is met to 1e-4, a longer one to 5e-4.
double Bound(const Json& golden) {
  return golden.at("ids").size() <= 300 ? 1e-4 : 5e-4;
}

TEST(Score, MeetsTheGoldenCases) {
  const Json golden = Json::parse(ReadFile(kGolden));
  const Json scored = Json::parse(Score(kGolden));
  ASSERT_EQ(scored.at("cases").size(), golden.at("cases").size());
  for (size_t c = 0; c < golden["cases"].size(); ++c) {
    const Json& want = golden["cases"][c];
    const Json& got = scored["cases"][c];
    const std::string name = want["name"];
    EXPECT_EQ(got["name"], name);
    EXPECT_EQ(got["ids"], want["ids"]);
    ASSERT_EQ(got["logprobs"].size(), want["logprobs"].size()) << name;
    EXPECT_TRUE(got["logprobs"][0].is_null());
    double worst = 0;
    for (size_t i = 1; i < want["logprobs"].size(); ++i) {
      worst = std::max(worst, std::abs(got["logprobs"][i].get<double>() - want["logprobs"][i].get<double>()));
    }
    EXPECT_LE(worst, Bound(want)) << name;
    RecordProperty("max_difference_" + name, std::to_string(worst));

    ASSERT_EQ(got["top"].size(), 20u) << name;
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(got["top"][i][1].get<double>(), want["top"][i][1].get<double>(), Bound(want)) << name;
      const auto apart = [&](size_t a, size_t b) {
        return std::abs(want["top"][a][1].get<double>() - want["top"][b][1].get<double>()) > 1e-3;
      };
      // The last one's next neighbour is not in the file.
      if (i < 19 && (i == 0 || apart(i - 1, i)) && apart(i, i + 1)) {
        EXPECT_EQ(got["top"][i][0], want["top"][i][0]) << name << " rank " << i;
      }
    }
  }
}

TEST(Score, NeighboursThreadsAndWholeChunksDoNotChangeABit) {
  const std::string all = Score(kGolden);
  ASSERT_NE(all, "");
  EXPECT_EQ(Score(kGolden, {"--max-running-requests", "1"}), all);
  EXPECT_EQ(Score(kGolden, {"--threads", "1"}), all);
  EXPECT_EQ(Score(kGolden, {"--threads", "3"}), all);
  EXPECT_EQ(Score(kGolden, {"--chunked-prefill-size", "64"}), all);
  EXPECT_EQ(Score(kGolden, {"--chunked-prefill-size", "64", "--max-running-requests", "1"}), all);
}

TEST(Score, RanksDoNotChangeABit) {
  const std::string all = Score(kGolden);
  ASSERT_NE(all, "");
  EXPECT_EQ(Score(kGolden, {"--tp", "2"}), all);
  EXPECT_EQ(
      Score(kGolden, {"--tp", "4", "--attn-cp-size", "4", "--enable-prefill-cp", "--cp-strategy", "zigzag"}),
      all);
  EXPECT_EQ(Score(kGolden,
                  {"--tp", "4", "--attn-cp-size", "2", "--enable-prefill-cp", "--cp-strategy", "contiguous"}),
            all);
}

void ExpectClose(const std::string& scored, const std::string& expected, double bound) {
  const Json a = Json::parse(scored), b = Json::parse(expected);
  ASSERT_EQ(a["cases"].size(), b["cases"].size());
  for (size_t c = 0; c < a["cases"].size(); ++c) {
    const Json &x = a["cases"][c]["logprobs"], &y = b["cases"][c]["logprobs"];
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 1; i < x.size(); ++i) ASSERT_NEAR(x[i].get<double>(), y[i].get<double>(), bound);
  }
}

TEST(Score, StatePassingRepeatsAndStaysClose) {
  const std::vector<std::string> flags = {
      "--tp",          "4",      "--attn-cp-size",         "4",   "--enable-prefill-cp",
      "--cp-strategy", "zigzag", "--chunked-prefill-size", "512", "--cp-kda-mode",
      "state"};
  const std::string once = Score(kGolden, flags);
  ExpectClose(once, Score(kGolden), 5e-4);
  EXPECT_EQ(Score(kGolden, flags), once);
}

// The planner's choice and its reason, step by step.
TEST(Score, AutoSaysWhatItChoseAndWhy) {
  const Finished finished = RunToEnd({PERIGEE_PROGRAM,
                                      "score",
                                      "--model-path",
                                      kModel,
                                      "--input",
                                      kGolden,
                                      "--tp",
                                      "4",
                                      "--attn-cp-size",
                                      "4",
                                      "--enable-prefill-cp",
                                      "--cp-strategy",
                                      "contiguous",
                                      "--deterministic",
                                      "off",
                                      "--link-gbps",
                                      "0.001",
                                      "--latency-us",
                                      "0",
                                      "--log-level",
                                      "debug"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  ExpectClose(finished.out, Score(kGolden), 5e-4);
  EXPECT_NE(finished.err.find("is cheapest; "), std::string::npos) << finished.err;
}

TEST(Score, OddChunksStayClose) {
  const Json whole = Json::parse(Score(kGolden));
  for (const char* chunk : {"1", "3", "100"}) {
    const Json pieces = Json::parse(Score(kGolden, {"--chunked-prefill-size", chunk}));
    for (size_t c = 0; c < whole["cases"].size(); ++c) {
      const Json& a = whole["cases"][c]["logprobs"];
      const Json& b = pieces["cases"][c]["logprobs"];
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 1; i < a.size(); ++i) {
        ASSERT_NEAR(a[i].get<double>(), b[i].get<double>(), 1e-4) << "pieces of " << chunk << ", token " << i;
      }
    }
  }
}

TEST(Score, TakesTextAndWritesAFile) {
  const std::string folder = ::testing::TempDir() + "perigee_score";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/in.json")
      << R"({"cases": [{"label": 7, "text": "<|im_user|>user"}, {"ids": [1795]}]})";
  EXPECT_EQ(Score(folder + "/in.json", {"--output", folder + "/out.json"}), "");
  const Json out = Json::parse(ReadFile(folder + "/out.json"));
  EXPECT_EQ(out["model"], "tiny-kimi-linear");
  EXPECT_EQ(out["cases"][0]["label"], 7);
  EXPECT_EQ(out["cases"][0]["ids"], Json({1795, 318}));
  EXPECT_EQ(out["cases"][0]["logprobs"].size(), 2u);
  EXPECT_EQ(out["cases"][1]["logprobs"], Json::array({nullptr}));
  EXPECT_EQ(out["cases"][1]["top"][0][0], 318);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace perigee::testing
