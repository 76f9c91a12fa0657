#include "cli/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

namespace perigee::cli {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// Answers every request once all have been submitted, last first: token i of a prompt has log-probability -i.
class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(size_t expected) : expected_(expected) {}

  StatusOr<engine::RequestId> Submit(engine::Request request, engine::OutputCallback callback) override {
    if (request.prompt.empty()) return InvalidArgument("the prompt is empty");
    asked_.push_back(request.sampling);
    pending_.emplace_back(std::move(request), std::move(callback));
    if (pending_.size() == expected_) {
      for (; !pending_.empty(); pending_.pop_back()) Answer(pending_.back().first, pending_.back().second);
    }
    return asked_.size();
  }
  void Cancel(engine::RequestId id) override { cancelled_.insert(id); }
  void FlushCache(std::function<void()> done) override { done(); }
  const engine::ModelInfo& model_info() const override { return info_; }
  engine::EngineStats stats() const override { return {}; }
  std::vector<engine::RankMemory> memory_peak() const override { return {}; }

  const std::vector<engine::SamplingParams>& asked() const { return asked_; }
  const std::set<engine::RequestId>& cancelled() const { return cancelled_; }

  Status failure;           // of every request
  float token_logprob = 0;  // added to every one

 private:
  void Answer(const engine::Request& request, const engine::OutputCallback& callback) {
    if (!failure.ok()) return callback({.finish = engine::FinishReason::kError, .status = failure});
    engine::Output first;
    first.prompt_logprobs.emplace_back();
    for (size_t i = 1; i < request.prompt.size(); ++i) {
      first.prompt_logprobs.emplace_back(token_logprob - static_cast<float>(i));
    }
    callback(std::move(first));
    engine::TokenOutput token{.id = 7, .logprob = -0.1f, .top = {{7, -0.1f}, {9, -2.5f}}};
    callback({.tokens = {token}, .finish = engine::FinishReason::kLength});
  }

  const size_t expected_;
  engine::ModelInfo info_;
  std::vector<engine::SamplingParams> asked_;
  std::vector<std::pair<engine::Request, engine::OutputCallback>> pending_;
  std::set<engine::RequestId> cancelled_;
};

class ScoreCasesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = text::Tokenizer::Load(PERIGEE_MODELS "/tiny-kimi-linear");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(*loaded);
  }

  static StatusOr<std::string> Score(const std::string& input, FakeEngine& engine) {
    return ScoreCases(input, "fake", *tokenizer_, engine);
  }
  static std::string Failure(const std::string& input, FakeEngine& engine) {
    const auto scored = Score(input, engine);
    return scored.ok() ? "no failure: " + *scored : scored.status().message();
  }
  static std::string Failure(const std::string& input) {
    FakeEngine engine(1);
    return Failure(input, engine);
  }

  static std::unique_ptr<text::Tokenizer> tokenizer_;
};

std::unique_ptr<text::Tokenizer> ScoreCasesTest::tokenizer_;

TEST_F(ScoreCasesTest, KeepsOrderAndFieldsAndTheFloatsDigits) {
  FakeEngine engine(2);
  const auto scored = Score(
      R"({"note": "kept", "cases": [{"name": "a", "text": "not this", "ids": [1, 2, 3]}, {"text": "<|im_user|>user"}]})",
      engine);
  ASSERT_TRUE(scored.ok()) << scored.status().message();
  const Json out = Json::parse(*scored);
  EXPECT_EQ(out["note"], "kept");
  EXPECT_EQ(out["model"], "fake");
  EXPECT_EQ(out["cases"][0]["name"], "a");
  EXPECT_EQ(out["cases"][0]["text"], "not this");
  EXPECT_EQ(out["cases"][0]["ids"], Json({1, 2, 3}));
  EXPECT_EQ(out["cases"][0]["logprobs"], Json({nullptr, -1.0, -2.0}));
  EXPECT_EQ(out["cases"][1]["ids"], Json({1795, 318}));
  EXPECT_EQ(out["cases"][1]["logprobs"], Json({nullptr, -1.0}));
  EXPECT_THAT(*scored, HasSubstr(R"("top":[[7,-0.1],[9,-2.5]])"));

  ASSERT_EQ(engine.asked().size(), 2u);
  EXPECT_EQ(engine.asked()[0].temperature, 0);
  EXPECT_EQ(engine.asked()[0].max_new_tokens, 1);
  EXPECT_EQ(engine.asked()[0].top_logprobs, 20);
  EXPECT_TRUE(engine.asked()[0].prompt_logprobs);
}

TEST_F(ScoreCasesTest, ErrorsNameCaseAndField) {
  EXPECT_THAT(Failure("{"), HasSubstr("not JSON"));
  EXPECT_THAT(Failure("[]"), HasSubstr("cases"));
  EXPECT_THAT(Failure(R"({"cases": {}})"), HasSubstr("cases"));
  EXPECT_THAT(Failure(R"({"cases": [3]})"), HasSubstr("cases[0]"));
  EXPECT_THAT(Failure(R"({"cases": [{"ids": [1]}, {}]})"), HasSubstr("cases[1]: field \"ids\" or \"text\""));
  EXPECT_THAT(Failure(R"({"cases": [{"text": 3}]})"), HasSubstr("cases[0]: field \"text\""));
  EXPECT_THAT(Failure(R"({"cases": [{"ids": "1"}]})"), HasSubstr("cases[0]: field \"ids\""));
  for (const char* id : {"1.5", "-1", "2147483648", "18446744073709551615", "null", "\"1\""}) {
    EXPECT_THAT(Failure(std::string(R"({"cases": [{"ids": [1, )") + id + "]}]}"),
                HasSubstr("cases[0]: field \"ids\"[1] is "))
        << id;
  }
}

TEST_F(ScoreCasesTest, ARefusedCaseCancelsTheOthers) {
  FakeEngine engine(3);
  EXPECT_EQ(Failure(R"({"cases": [{"ids": [1]}, {"ids": [2]}, {"ids": []}]})", engine),
            "cases[2]: the prompt is empty");
  EXPECT_EQ(engine.cancelled(), (std::set<engine::RequestId>{1, 2}));
}

TEST_F(ScoreCasesTest, FailuresWhileRunning) {
  FakeEngine failing(1);
  failing.failure = InternalError("logits are not finite");
  EXPECT_EQ(Failure(R"({"cases": [{"ids": [1]}]})", failing), "cases[0]: logits are not finite");
  FakeEngine broken(1);
  broken.token_logprob = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Failure(R"({"cases": [{"ids": [1, 2]}]})", broken), HasSubstr("cases[0]"));
}

TEST_F(ScoreCasesTest, NoCases) {
  FakeEngine engine(0);
  const auto scored = Score(R"({"cases": []})", engine);
  ASSERT_TRUE(scored.ok()) << scored.status().message();
  EXPECT_EQ(Json::parse(*scored)["cases"], Json::array());
}

}  // namespace
}  // namespace perigee::cli
