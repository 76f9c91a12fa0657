#include "cli/eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace perigee::cli {
namespace {

using ::testing::HasSubstr;

TEST(LastNumber, TakesTheLastOfAnyForm) {
  EXPECT_EQ(LastNumber("1 + 2 = 3"), 3);
  EXPECT_EQ(LastNumber("it is 1,234,567."), 1234567);
  EXPECT_EQ(LastNumber("$2.50 each"), 2.5);
  EXPECT_EQ(LastNumber("1.2.3"), 2.3);
  EXPECT_EQ(LastNumber("so -7"), -7);
  EXPECT_EQ(LastNumber("-7"), -7);
  EXPECT_EQ(LastNumber("x = (-7)"), -7);
  EXPECT_EQ(LastNumber("9-7"), 7);
  EXPECT_EQ(LastNumber("no-7"), 7);
  EXPECT_EQ(LastNumber("9 - 7"), 7);
  EXPECT_EQ(LastNumber("007"), 7);
  EXPECT_EQ(LastNumber("12\n\nand no more"), 12);
  EXPECT_EQ(LastNumber(".5"), 5);
}

TEST(LastNumber, NothingWithoutDigits) {
  EXPECT_FALSE(LastNumber("").has_value());
  EXPECT_FALSE(LastNumber("none, at all.").has_value());
  EXPECT_FALSE(LastNumber("-.").has_value());
}

TEST(Gsm8k, PromptIsExact) {
  const std::vector<Question> all = {{.question = "q0", .answer = "a0\n#### 0"},
                                     {.question = "q1", .answer = "a1\n#### 1"},
                                     {.question = "q2", .answer = "a2\n#### 2"}};
  EXPECT_EQ(FewShotPrompt(all, 2, all[2]),
            "Question: q0\nAnswer: a0\n#### 0\n\nQuestion: q1\nAnswer: a1\n#### 1\n\nQuestion: q2\nAnswer:");
  EXPECT_EQ(FewShotPrompt(all, 0, all[0]), "Question: q0\nAnswer:");
}

TEST(Gsm8k, JudgesTheNumberAfterTheMark) {
  const EvalTask task = MakeGsm8kTask({});
  EXPECT_TRUE(task.judge(" 5 * 8 = 40\n#### 40\n\n", "5 * 8 = 40\n#### 40"));
  EXPECT_TRUE(task.judge("1,000", "so\n#### 1000"));
  EXPECT_TRUE(task.judge("18.0", "#### 18"));
  EXPECT_FALSE(task.judge("40 and 41", "#### 40"));
  EXPECT_FALSE(task.judge("forty", "#### 40"));
  EXPECT_TRUE(task.parses("40"));
  EXPECT_FALSE(task.parses("forty"));
}

TEST(Needle, StripsBlanksOnly) {
  const EvalTask task = MakeNeedleTask({});
  EXPECT_TRUE(task.judge(" The key is 7.\n", "The key is 7."));
  EXPECT_FALSE(task.judge("The key is 7. Yes", "The key is 7."));
}

TEST(Chat, IsExact) {
  const EvalTask task = MakeChatTask({});
  EXPECT_TRUE(task.judge("Hello", "Hello"));
  EXPECT_FALSE(task.judge("Hello ", "Hello"));
}

TEST(EvalResult, Lines) {
  const EvalResult result{
      .asked = 200, .correct = 150, .truncated = 1, .unparsed = 2, .completion_tokens = 500, .seconds = 4};
  EXPECT_EQ(result.Report(true),
            "Total latency: 4.000 s\nScore: 0.750\nOutput throughput: 125.000 token/s\n");
  EXPECT_EQ(result.Report(false), "Score: 0.750\n");
  EXPECT_EQ(result.Remarks(), "n = 200, standard error 0.031, truncated 1, unparsed 2\n");
}

TEST(EvalResult, SaysSoWhenManyWereTruncated) {
  const EvalResult result{.asked = 100, .correct = 1, .truncated = 2};
  EXPECT_THAT(result.Remarks(), HasSubstr("over 1 % truncated"));
}

class QuestionsFile : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_ = ::testing::TempDir() + "questions.jsonl";
};

TEST_F(QuestionsFile, ReadsTheFieldOfItsSet) {
  const auto plain = LoadQuestions(Write("{\"question\": \"q\", \"answer\": \"a\"}\n\n"), "question");
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  ASSERT_EQ(plain->size(), 1u);
  EXPECT_EQ((*plain)[0].question, "q");
  EXPECT_EQ((*plain)[0].answer, "a");
  const auto chat =
      LoadQuestions(Write("{\"messages\": [{\"role\": \"user\"}], \"answer\": \"a\"}"), "messages");
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ((*chat)[0].messages_json, "[{\"role\":\"user\"}]");
}

TEST_F(QuestionsFile, ErrorsNameFileLineAndField) {
  const auto broken = LoadQuestions(Write("{\"prompt\": \"q\", \"answer\": \"a\"}\n{\"prompt\":"), "prompt");
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(broken.status().message(), HasSubstr("questions.jsonl:2"));
  const auto missing = LoadQuestions(Write("{\"answer\": \"a\"}"), "prompt");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("\"prompt\""));
  const auto wrong = LoadQuestions(Write("{\"prompt\": \"q\", \"answer\": 4}"), "prompt");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.status().message(), HasSubstr("\"answer\""));
  EXPECT_FALSE(LoadQuestions(Write("\n"), "prompt").ok());
  EXPECT_FALSE(LoadQuestions("/nonexistent", "prompt").ok());
}

TEST(EvalData, TheCommittedSetsLoad) {
  const std::string folder = std::string(PERIGEE_TEST_DATA) + "/eval/";
  const auto size = [&](const char* file, const char* field) {
    const auto questions = LoadQuestions(folder + file, field);
    return questions.ok() ? questions->size() : 0;
  };
  EXPECT_EQ(size("arithmetic.jsonl", "question"), 205u);
  EXPECT_EQ(size("gsm8k_test.jsonl", "question"), 1319u);
  EXPECT_EQ(size("chat.jsonl", "prompt"), 100u);
  EXPECT_EQ(size("needle_8192.jsonl", "messages"), 20u);
}

}  // namespace
}  // namespace perigee::cli
