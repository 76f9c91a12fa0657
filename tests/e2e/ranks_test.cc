// The server's answers with prompts split over ranks, against those of one rank.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "e2e/process.h"

namespace perigee::testing {
namespace {

constexpr char kListening[] = "perigee is listening on ";

// What `perigee eval gsm8k` writes for every question of the arithmetic set, served with these flags.
std::string AnswersWith(const std::vector<std::string>& flags, const std::string& output) {
  std::vector<std::string> serve = {
      PERIGEE_PROGRAM, "serve", "--model-path", PERIGEE_MODELS "/tiny-kimi-linear", "--port", "0"};
  serve.insert(serve.end(), flags.begin(), flags.end());
  Process server(serve);
  const std::string line = server.WaitForLine(kListening);
  EXPECT_FALSE(line.empty()) << server.err();
  const std::string url = line.substr(line.empty() ? 0 : std::string(kListening).size());
  const Finished eval =
      RunToEnd({PERIGEE_PROGRAM, "eval", "gsm8k", "--base-url", url, "--data",
                PERIGEE_TEST_DATA "/eval/arithmetic.jsonl", "--parallel", "32", "--output", output},
               std::chrono::seconds(280));
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
  std::ifstream file(output);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Ranks, AnswersAreThoseOfOneRank) {
  const std::string folder = ::testing::TempDir();
  const std::string one = AnswersWith({}, folder + "perigee_one_rank.jsonl");
  const std::string four = AnswersWith({"--tp", "4", "--attn-cp-size", "4", "--enable-prefill-cp",
                                        "--cp-strategy", "zigzag", "--trust-remote-code"},
                                       folder + "perigee_four_ranks.jsonl");
  EXPECT_GT(one.size(), 10000u);
  EXPECT_EQ(one, four);
}

}  // namespace
}  // namespace perigee::testing
