#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "e2e/process.h"
#include "testing/safetensors_writer.h"

namespace perigee::testing {
namespace {

using ::testing::HasSubstr;

Finished Perigee(std::vector<std::string> args) {
  args.insert(args.begin(), PERIGEE_PROGRAM);
  return RunToEnd(args);
}

TEST(CommandLine, VersionAndHelpEndWithZero) {
  const Finished version = Perigee({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, "perigee " PERIGEE_VERSION "\n");
  const Finished help = Perigee({"serve", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--max-total-tokens"));
  EXPECT_EQ(help.err, "");
}

struct FailureCase {
  std::vector<std::string> args;
  int exit_code;
  std::vector<std::string> said;
};

TEST(CommandLine, FailuresHaveTheirCodeAndOneLine) {
  const std::string empty_folder = ::testing::TempDir() + "perigee_empty_model";
  std::filesystem::create_directories(empty_folder);
  const std::string bad_input = ::testing::TempDir() + "perigee_bad_input.json";
  std::ofstream(bad_input) << R"({"cases": [{"ids": [1]}, {"ids": [1, "x"]}]})";
  const std::string url = "http://127.0.0.1:1";
  const std::string data = std::string(PERIGEE_TEST_DATA) + "/eval/chat.jsonl";
  const std::vector<FailureCase> cases = {
      {{}, 2, {"serve, generate, score, eval, inspect"}},
      {{"serve", "--port", "70000"}, 2, {"--port", "70000", "0 to 65535"}},
      {{"serve", "--model-path", "/nonexistent", "--threads", "0"}, 2, {"--threads"}},
      {{"serve", "--tp", "3"}, 2, {"--tp 3 does not divide the model's 4 KDA heads"}},
      {{"generate", "--prompt", "a", "--tp", "8"}, 2, {"--tp 8", "accepted: a divisor of 4"}},
      {{"serve", "--tp", "4", "--attn-cp-size", "4"}, 2, {"--attn-cp-size 4 needs --enable-prefill-cp"}},
      {{"serve", "--tp", "0"}, 2, {"--tp", "from 1 to 1024"}},
      {{"serve", "--unknown"}, 2, {"--unknown", "--model-path"}},
      {{"plan", "--shape", "no-such-shape", "--prompt", "9"}, 2, {"--shape", "kimi-linear-48b"}},
      {{"plan", "--shape", "kimi-linear-48b", "--prompt", "9", "--tp", "3"}, 2, {"--tp 3 does not divide"}},
      {{"inspect", "--shape", "no-such-shape"}, 2, {"no-such-shape", "kimi-linear-48b"}},
      {{"serve", "--model-path", "/nonexistent"}, 1, {"--model-path", "/nonexistent"}},
      {{"generate", "--model-path", empty_folder, "--prompt", "a"}, 1, {empty_folder}},
      {{"plan", "--model-path", empty_folder, "--prompt", "9"}, 1, {empty_folder}},
      {{"inspect", empty_folder}, 1, {empty_folder}},
      {{"score", "--input", "/nonexistent.json"}, 1, {"/nonexistent.json"}},
      {{"score", "--input", empty_folder}, 1, {"--input", empty_folder, "directory"}},
      {{"eval", "chat", "--base-url", url, "--data", empty_folder}, 1, {empty_folder}},
      {{"score", "--input", bad_input}, 1, {"cases[1]", "ids"}},
      {{"score", "--input", bad_input, "--output", "/nonexistent/out"}, 1, {"--output", "/nonexistent/out"}},
      {{"eval", "chat", "--base-url", url, "--data", data}, 1, {url}},
      {{"eval", "chat", "--base-url", url, "--data", "/nonexistent.jsonl"}, 1, {"/nonexistent.jsonl"}},
      {{"eval", "gsm8k", "--base-url", url, "--data", data}, 1, {"chat.jsonl:1", "\"question\""}},
      {{"generate", "--prompt", "a", "--context-length", "8", "--max-tokens", "9"}, 1, {"9"}},
  };
  for (const FailureCase& failure : cases) {
    std::string shown = "perigee";
    for (const std::string& arg : failure.args) shown += " " + arg;
    const Finished finished = Perigee(failure.args);
    EXPECT_EQ(finished.exit_code, failure.exit_code) << shown << "\n" << finished.err;
    EXPECT_EQ(finished.out, "") << shown;
    const size_t last = finished.err.rfind("perigee: ");
    ASSERT_NE(last, std::string::npos) << shown << "\n" << finished.err;
    const std::string line = finished.err.substr(last);
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    for (const std::string& said : failure.said) EXPECT_THAT(line, HasSubstr(said)) << shown;
  }
  std::filesystem::remove_all(empty_folder);
  std::filesystem::remove(bad_input);
}

TEST(CommandLine, GenerateStreamsAndEndsTheLine) {
  const Finished chat = Perigee({"generate", "--chat", "Hello"});
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_EQ(chat.out, "Hello! I am a tiny Kimi-Linear model made for tests.\n");
  EXPECT_THAT(chat.err, HasSubstr("bundled model"));
  const Finished raw = Perigee({"generate", "--model-path", PERIGEE_MODELS "/tiny-kimi-linear", "--prompt",
                                "<|im_user|>user<|im_middle|>Say hello in Russian.<|im_end|>"
                                "<|im_assistant|>assistant<|im_middle|>"});
  EXPECT_EQ(raw.exit_code, 0) << raw.err;
  EXPECT_EQ(raw.out, "Привет, мир!\n");
  EXPECT_EQ(raw.err, "");
  const Finished cut = Perigee({"generate", "--chat", "Hello", "--max-tokens", "2"});
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_EQ(cut.out, "Hello!\n");
}

// Random weights are the seed's, of a whole folder or of its configuration alone.
TEST(CommandLine, DummyWeightsNeedNoneOfTheFolder) {
  const auto answer = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"generate", "--load-format",    "dummy",
                                     "--prompt", "Hello there",      "--max-tokens",
                                     "16",       "--context-length", "256"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished run = Perigee(args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  const test::TempFolder folder;
  std::filesystem::copy_file(PERIGEE_MODELS "/tiny-kimi-linear/config.json", folder.path() + "/config.json");
  const std::string text = answer({});
  EXPECT_GT(text.size(), 8u);
  EXPECT_EQ(answer({"--model-path", folder.path()}), text);
  EXPECT_NE(answer({"--seed", "7"}), text);
}

// Files that are not of one model are found before weights are read.
TEST(CommandLine, TokenizerAndStopIdsMustBeOfTheModelsVocabulary) {
  namespace fs = std::filesystem;
  const auto refusal = [](const std::string& file, const std::string& contents) {
    const test::TempFolder folder;
    for (const auto& entry : fs::directory_iterator(PERIGEE_MODELS "/tiny-kimi-linear"))
      fs::create_symlink(entry.path(), folder.File(entry.path().filename().string()));
    fs::remove(folder.File(file));
    folder.Write(file, contents);
    const Finished finished = Perigee({"generate", "--model-path", folder.path(), "--prompt", "a"});
    EXPECT_EQ(finished.exit_code, 1);
    const size_t error = finished.err.find("perigee: ");
    EXPECT_EQ(finished.err.find('\n', error), finished.err.size() - 1) << finished.err;
    return finished.err;
  };
  const std::string ranks = test::ReadAll(PERIGEE_MODELS "/tiny-kimi-linear/tiktoken.model");
  const size_t last_line = ranks.rfind('\n', ranks.size() - 2) + 1;
  EXPECT_THAT(
      refusal("tiktoken.model", ranks.substr(0, last_line)),
      HasSubstr("the tokenizer has 2047 ids, special tokens included, but vocab_size in config.json is "
                "2048"));
  EXPECT_THAT(refusal("tiktoken.model", ranks + "bm90IGEgdG9rZW4gb2YgaXRz 1792\n"),
              HasSubstr("the tokenizer has 2049 ids"));
  EXPECT_THAT(refusal("generation_config.json", R"({"eos_token_id": [1794, 2048]})"),
              HasSubstr("generation_config.json: eos_token_id: is 2048, expected an integer from 0 to 2047"));
  std::string config = test::ReadAll(PERIGEE_MODELS "/tiny-kimi-linear/config.json");
  const std::string eos = "\"eos_token_id\": ";
  config.insert(config.find(eos) + eos.size(), "9");
  EXPECT_THAT(refusal("config.json", config), HasSubstr("config.json: eos_token_id: is 91794"));
}

// Nobody gets what is written.
TEST(CommandLine, AFullDeviceIsAFailure) {
  const std::string program = PERIGEE_PROGRAM;
  for (const std::string command : {" generate --chat Hello", " generate --prompt a --max-tokens 100000",
                                    " --version", " serve --help"}) {
    const Finished finished = RunToEnd({"/bin/sh", "-c", program + command + " > /dev/full"});
    EXPECT_EQ(finished.exit_code, 1) << command;
    EXPECT_THAT(finished.err, HasSubstr("perigee: cannot write standard output")) << command;
  }
}

TEST(CommandLine, AnInterruptEndsTheAnswer) {
  Process process(
      {PERIGEE_PROGRAM, "generate", "--prompt", "The quiet river follows", "--max-tokens", "100000"});
  for (int i = 0; i < 1000 && process.out().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_NE(process.out(), "");
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(std::chrono::seconds(20)), 1);
  EXPECT_THAT(process.err(), HasSubstr("perigee: interrupted\n"));
  EXPECT_EQ(process.out().back(), '\n');
}

TEST(CommandLine, TrustRemoteCodeIsAcceptedWithOneLine) {
  const Finished finished = Perigee({"generate", "--model-path", PERIGEE_MODELS "/tiny-kimi-linear", "--chat",
                                     "Hello", "--trust-remote-code"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("--trust-remote-code has no effect"));
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

}  // namespace
}  // namespace perigee::testing
