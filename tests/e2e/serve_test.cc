#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/http_client.h"
#include "e2e/process.h"

namespace perigee::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr char kModel[] = PERIGEE_MODELS "/tiny-kimi-linear";
constexpr char kListening[] = "perigee is listening on ";

// Starts a server on a free port and waits until it answers at `url`.
std::unique_ptr<Process> StartServer(std::string* url) {
  auto server = std::make_unique<Process>(
      std::vector<std::string>{PERIGEE_PROGRAM, "serve", "--model-path", kModel, "--port", "0"});
  const std::string line = server->WaitForLine(kListening);
  if (line.empty()) {
    ADD_FAILURE() << "no server: " << server->err();
    return nullptr;
  }
  *url = line.substr(std::string(kListening).size());
  return server;
}

// One server for all tests of the suite.
class Serve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = StartServer(&url_);
    ASSERT_TRUE(server_);
  }

  static void TearDownTestSuite() {
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Wait(), 0) << server_->err();
    server_.reset();
  }

  static Finished Eval(const std::string& kind, const std::string& file,
                       std::vector<std::string> flags = {}) {
    std::vector<std::string> args = {PERIGEE_PROGRAM,
                                     "eval",
                                     kind,
                                     "--base-url",
                                     url_,
                                     "--data",
                                     std::string(PERIGEE_TEST_DATA "/eval/") + file};
    args.insert(args.end(), flags.begin(), flags.end());
    return RunToEnd(args, std::chrono::seconds(280));
  }

  // The number after `label` in an eval's output; -1 when there is none.
  static double Figure(const std::string& out, const std::string& label) {
    const size_t at = ("\n" + out).find("\n" + label + ": ");
    return at == std::string::npos ? -1 : std::atof(out.c_str() + at + label.size() + 2);
  }

  static Json Post(const std::string& path, const Json& body, int status = 200) {
    cli::HttpClient client(*cli::ParseHttpUrl(url_), std::chrono::seconds(120));
    const auto reply = client.Post(path, body.dump());
    if (!reply.ok()) {
      ADD_FAILURE() << reply.status().message();
      return {};
    }
    EXPECT_EQ(reply->status, status) << reply->body;
    return Json::parse(reply->body, nullptr, false);
  }

  static std::unique_ptr<Process> server_;
  static std::string url_;
};

std::unique_ptr<Process> Serve::server_;
std::string Serve::url_;

TEST_F(Serve, WordProblemsWith32InParallel) {
  const Finished eval = Eval("gsm8k", "arithmetic.jsonl", {"--num-questions", "200", "--parallel", "32"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_GE(Figure(eval.out, "Score"), 0.99) << eval.out << eval.err;
  EXPECT_GT(Figure(eval.out, "Total latency"), 0) << eval.out;
  EXPECT_GT(Figure(eval.out, "Output throughput"), 0) << eval.out;
  EXPECT_THAT(eval.err, HasSubstr("n = 200, "));
  EXPECT_THAT(eval.err, HasSubstr("truncated 0, unparsed 0"));
  RecordProperty("seconds", std::to_string(Figure(eval.out, "Total latency")));
}

TEST_F(Serve, ChatsToTheCharacter) {
  const Finished eval = Eval("chat", "chat.jsonl");
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_GE(Figure(eval.out, "Score"), 0.97) << eval.out;
  EXPECT_THAT(eval.err, HasSubstr("n = 100, "));
}

TEST_F(Serve, PassKeysIn8192Tokens) {
  const Finished eval = Eval("needle", "needle_8192.jsonl");
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_GE(Figure(eval.out, "Score"), 0.95) << eval.out;
  EXPECT_THAT(eval.err, HasSubstr("n = 20, "));
}

TEST_F(Serve, AnswersAreThoseOfTheGoldenCases) {
  std::ifstream in(PERIGEE_TEST_DATA "/golden/tiny-kimi-linear.json");
  const Json golden = Json::parse(in);
  for (const Json& want : golden["cases"]) {
    const Json sampling = {
        {"temperature", 0}, {"max_new_tokens", want["greedy"].size()}, {"skip_special_tokens", false}};
    const Json by_ids = Post("/generate", {{"input_ids", want["ids"]}, {"sampling_params", sampling}});
    EXPECT_EQ(by_ids["output_ids"], want["greedy"]) << want["name"];
    const Json by_text = Post("/generate", {{"text", want["text"]}, {"sampling_params", sampling}});
    EXPECT_EQ(by_text["output_ids"], want["greedy"]) << want["name"];
    EXPECT_EQ(by_text["meta_info"]["prompt_tokens"], want["ids"].size()) << want["name"];
  }
}

TEST_F(Serve, ChatsOverOpenAi) {
  const Json chat = Post("/v1/chat/completions",
                         {{"model", "tiny-kimi-linear"},
                          {"temperature", 0},
                          {"messages", {{{"role", "user"}, {"content", "Say hello in Russian."}}}}});
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "Привет, мир!");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(chat["model"], "tiny-kimi-linear");
}

// The history of a chat is not computed again, its answers included.
TEST_F(Serve, ATurnOfAChatComputesWhatIsNew) {
  std::string document;
  for (int i = 0; i < 120; ++i) document += "Paragraph " + std::to_string(i) + " is about ducks. ";
  Json messages = Json::array({{{"role", "user"}, {"content", document}}});
  int64_t processed = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const Json reply =
        Post("/v1/chat/completions", {{"messages", messages}, {"temperature", 0}, {"max_tokens", 40}});
    const auto prompt = reply["usage"]["prompt_tokens"].get<int64_t>();
    const auto cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
    // All before the first turn is new.
    EXPECT_LE(prompt - cached, prompt - processed + (turn == 0 ? 0 : 64)) << "turn " << turn;
    processed = prompt + reply["usage"]["completion_tokens"].get<int64_t>();
    messages.push_back({{"role", "assistant"}, {"content", reply["choices"][0]["message"]["content"]}});
    messages.push_back({{"role", "user"}, {"content", "And number " + std::to_string(turn) + "?"}});
  }
  EXPECT_EQ(Post("/flush_cache", Json::object())["status"], "ok");
  const Json again =
      Post("/v1/chat/completions", {{"messages", messages}, {"temperature", 0}, {"max_tokens", 1}});
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(Serve, EvalWritesEveryAnswer) {
  const std::string file = ::testing::TempDir() + "perigee_eval_answers.jsonl";
  const Finished eval = Eval("chat", "chat.jsonl", {"--num-questions", "3", "--output", file});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  std::ifstream in(file);
  std::string line;
  int64_t lines = 0;
  for (; std::getline(in, line); ++lines) {
    const Json answer = Json::parse(line);
    EXPECT_EQ(answer["index"], lines);
    EXPECT_EQ(answer["correct"], answer["text"] == answer["answer"]);
    EXPECT_EQ(answer["finish_reason"], "stop");
  }
  EXPECT_EQ(lines, 3);
  std::remove(file.c_str());
}

// The second question is refused by the server: an empty prompt.
TEST_F(Serve, EvalNamesFailedQuestionsAndGoesOn) {
  const std::string folder = ::testing::TempDir();
  const std::string data = folder + "perigee_eval_bad.jsonl", output = folder + "perigee_eval_bad_out.jsonl";
  std::ofstream(data) << R"({"prompt": "a", "answer": "x"})"
                      << "\n"
                      << R"({"prompt": "", "answer": "x"})"
                      << "\n"
                      << R"({"prompt": "b", "answer": "x"})"
                      << "\n";
  const Finished eval = RunToEnd({PERIGEE_PROGRAM, "eval", "chat", "--base-url", url_, "--data", data,
                                  "--output", output, "--max-new-tokens", "4", "--parallel", "1"});
  EXPECT_EQ(eval.exit_code, 1);
  EXPECT_GE(Figure(eval.out, "Score"), 0) << eval.out;
  EXPECT_THAT(eval.err, HasSubstr("question 1 failed: /generate answered 400"));
  EXPECT_THAT(eval.err, HasSubstr("n = 3, "));
  EXPECT_THAT(eval.err, HasSubstr(", failed 1"));
  EXPECT_THAT(eval.err,
              HasSubstr("perigee: 1 of 3 requests failed and count as wrong; the first: question 1: "));
  std::ifstream in(output);
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].contains("text") && lines[2].contains("text"));
  EXPECT_THAT(lines[1]["error"].get<std::string>(), HasSubstr("holds no token"));
}

TEST(StrictTemplate, RefusesWhatIsNotRendered) {
  const std::string folder = ::testing::TempDir() + "perigee_strict_template";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(kModel, folder);
  std::ofstream(folder + "/chat_template.jinja", std::ios::app) << "<think>";
  const Finished strict = RunToEnd({PERIGEE_PROGRAM, "serve", "--model-path", folder, "--strict-template"});
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_THAT(strict.err, HasSubstr("--strict-template"));
  const Finished warned = RunToEnd({PERIGEE_PROGRAM, "generate", "--model-path", folder, "--chat", "Hello"});
  EXPECT_EQ(warned.exit_code, 0);
  EXPECT_THAT(warned.err, HasSubstr("chat template"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace perigee::testing
