#include <thread>

#include "base/strings.h"
#include "server/api_fixture.h"

namespace perigee::server {
namespace {

using std::chrono::milliseconds;

class CancelApi : public ApiTest {
 protected:
  // Waits until the engine has seen `n` requests.
  bool WaitRequests(size_t n) {
    for (int i = 0; i < 1000; ++i) {
      if (engine_->requests().size() >= n) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
};

TEST_F(CancelApi, AClosedConnectionFreesTheEngine) {
  script_.finish = engine::FinishReason::kNone;
  engine_->set_step_time(milliseconds(1));
  size_t n = 0;
  for (bool half_close : {false, true}) {
    for (bool stream : {false, true}) {
      test::HttpConnection c(port());
      Json body = Chat("hi", {{"stream", stream}, {"n", 3}});
      c.Send(test::PostText("/v1/chat/completions", body.dump()));
      ASSERT_TRUE(WaitRequests(n += 3));
      if (stream) {
        ASSERT_TRUE(c.ReadUntil("\"content\":"));
      }
      half_close ? c.ShutdownSend() : c.Close();
      EXPECT_TRUE(engine_->WaitIdle(std::chrono::seconds(2)));
      EXPECT_EQ(engine_->cancelled(), static_cast<int64_t>(n));
    }
  }
}

TEST_F(CancelApi, AClientThatLeavesDuringThePromptIsNoticed) {
  script_.stall = true;
  test::HttpConnection c(port());
  c.Send(test::PostText("/generate", R"({"text":"a"})"));
  ASSERT_TRUE(WaitRequests(1));
  c.Close();
  EXPECT_TRUE(engine_->WaitIdle(std::chrono::seconds(2)));
}

TEST_F(CancelApi, TheNextRequestIsUnaffected) {
  engine_->set_step_time(milliseconds(1));
  for (int i = 0; i < 30; ++i) {
    {
      test::HttpConnection c(port());
      c.Send(test::PostText("/v1/chat/completions", Chat("hi", {{"stream", true}}).dump()));
      std::this_thread::sleep_for(milliseconds(i));
    }
    Json reply = PostOk("/v1/chat/completions", Chat("hi there"));
    EXPECT_EQ(reply["choices"][0]["message"]["content"], "All is well.");
    EXPECT_EQ(reply["usage"]["prompt_tokens"], engine_->last_request().prompt.size());
  }
  EXPECT_TRUE(engine_->WaitIdle());
}

TEST_F(CancelApi, QueuedRequestsOfGoneClientsAreNotExecuted) {
  Restart({.intake_threads = 1});
  engine_->HoldSubmissions(true);
  test::HttpConnection busy(port());
  busy.Send(test::PostText("/v1/completions", R"({"prompt":"busy"})"));
  ASSERT_TRUE(engine_->WaitHeld());  // the one intake thread is in there
  for (int i = 0; i < 9; ++i) {
    test::HttpConnection gone(port());
    gone.Send(test::PostText("/v1/completions", R"({"prompt":"gone"})"));
    gone.ShutdownSend();
    EXPECT_TRUE(gone.WaitClosed());  // the server has noticed
  }
  engine_->HoldSubmissions(false);
  EXPECT_EQ(busy.Read().status, 200);
  EXPECT_EQ(PostOk("/v1/completions", {{"prompt", "alive"}})["choices"][0]["text"], "All is well.");
  ASSERT_EQ(engine_->requests().size(), 2u);
  EXPECT_EQ(engine_->requests()[0].prompt, Ids("busy"));
  EXPECT_EQ(engine_->requests()[1].prompt, Ids("alive"));
}

TEST_F(CancelApi, TheEnginesOwnCancellationIsAnError) {
  script_ = {.tokens = Ids("a"), .finish = engine::FinishReason::kCancelled};
  PostError(503, "/v1/completions", {{"prompt", "a"}});
}

TEST_F(CancelApi, WhatTheGraceTimeCutsOffLearnsWhy) {
  script_.finish = engine::FinishReason::kNone;
  engine_->set_step_time(milliseconds(1));
  test::HttpConnection stream(port()), body(port());
  stream.Send(test::PostText("/v1/chat/completions", Chat("hi", {{"stream", true}}).dump()));
  body.Send(test::PostText("/v1/completions", R"({"prompt":"a","max_tokens":4000})"));
  ASSERT_TRUE(stream.ReadUntil("\"content\":"));
  ASSERT_TRUE(WaitRequests(2));
  EXPECT_EQ(server_->Stop(milliseconds(50)), 2u);
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->cancelled(), 2);
  const test::HttpReply cut = stream.Read();
  EXPECT_TRUE(cut.whole);
  const std::vector<std::string> events = test::Events(cut.body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["message"],
            "the server is shutting down and the answer was not finished within 0.05 s");
  const test::HttpReply refused = body.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting down"), std::string::npos);
}

// A request that the engine has not been given yet.
TEST_F(CancelApi, WhatHasNotBegunLearnsWhyToo) {
  engine_->HoldSubmissions(true);
  test::HttpConnection held(port());
  held.Send(test::PostText("/v1/completions", R"({"prompt":"a"})"));
  ASSERT_TRUE(engine_->WaitHeld());  // the delivery thread is in there
  std::thread release([&] {
    std::this_thread::sleep_for(milliseconds(100));
    engine_->HoldSubmissions(false);
  });
  const size_t cut = server_->Stop(milliseconds(0));
  release.join();
  // It was not just dropped.
  EXPECT_EQ(held.Read().status, cut == 0 ? 200 : 503);
}

TEST_F(CancelApi, StoppingTheServerCancelsWhatIsLeft) {
  script_.finish = engine::FinishReason::kNone;
  engine_->set_step_time(milliseconds(1));
  test::HttpConnection c(port());
  c.Send(test::PostText("/v1/chat/completions", Chat("hi", {{"stream", true}}).dump()));
  ASSERT_TRUE(c.ReadUntil("\"content\":"));
  server_->Stop(milliseconds(50));
  EXPECT_TRUE(engine_->WaitIdle(std::chrono::seconds(2)));
  EXPECT_EQ(engine_->cancelled(), 1);
}

}  // namespace
}  // namespace perigee::server
