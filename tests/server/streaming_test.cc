#include <thread>

#include "base/strings.h"
#include "server/api_fixture.h"

namespace perigee::server {
namespace {

using StreamingApi = ApiTest;

const char* const kPaths[] = {"/v1/chat/completions", "/v1/completions", "/generate"};

// A body that every endpoint understands.
// A request that the path takes.
Json BodyFor(std::string_view path, Json extra = Json::object()) {
  Json body = path == "/generate" ? Json{{"text", "hi"}} : Json{{"prompt", "hi"}};
  if (path == "/v1/chat/completions") body = Chat("hi");
  body.update(extra);
  return body;
}

TEST_F(StreamingApi, AFaultIsOneErrorEventThenDoneThenTheEnd) {
  script_ = {.tokens = ByteIds("abc"),
             .finish = engine::FinishReason::kError,
             .error = InternalError("rank 1 is lost")};
  for (const char* path : kPaths) {
    test::HttpConnection c(port());
    c.Send(test::PostText(path, BodyFor(path, {{"stream", true}}).dump()));
    test::HttpReply reply = c.Read();
    EXPECT_EQ(reply.status, 200);
    auto events = test::Events(reply.body);
    ASSERT_GE(events.size(), 3u) << path;
    EXPECT_EQ(events.back(), "[DONE]");
    Json error = Json::parse(events[events.size() - 2]);
    EXPECT_EQ(error["error"]["message"], "rank 1 is lost");
    EXPECT_EQ(error["error"]["type"], "server_error");
    int errors = 0;
    for (const std::string& event : events) errors += event.find("\"error\"") != std::string::npos;
    EXPECT_EQ(errors, 1);
    EXPECT_TRUE(c.WaitClosed(std::chrono::seconds(2)));

    reply = test::Post(port(), path, BodyFor(path).dump());
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "rank 1 is lost");
  }
}

TEST_F(StreamingApi, OneFaultEndsAllChoices) {
  int number = 0;
  script_.finish = engine::FinishReason::kNone;
  server_.reset();
  engine_ = std::make_unique<test::FakeEngine>(
      [&](const engine::Request&) {
        test::Script script = script_;
        if (number++ == 1) script.finish = engine::FinishReason::kError, script.error = InternalError("x");
        return script;
      },
      TinyInfo());
  server_ = std::move(Server::Start({.port = 0}).value());
  ASSERT_TRUE(server_->SetReady(engine_.get(), &TinyTokenizer()).ok());
  EXPECT_EQ(test::Post(port(), "/v1/completions", R"({"prompt":"a","n":3,"max_tokens":4000})").status, 500);
  EXPECT_TRUE(engine_->WaitIdle());
}

TEST_F(StreamingApi, InvalidRequestsFailBeforeTheStream) {
  for (const char* path : kPaths) {
    Json body = BodyFor(path, {{"stream", true}, {"n", 0}});
    body["sampling_params"] = {{"n", 0}};
    PostError(400, path, body);
  }
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(StreamingApi, ParallelStreamsAllEnd) {
  script_.tokens = ByteIds(std::string(200, 'x'));
  std::vector<std::thread> clients;
  std::atomic<int> whole{0};
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([&, i] {
      for (int k = 0; k < 3; ++k) {
        bool stream = (i + k) % 2 == 0;
        Json body = {{"prompt", StrCat("prompt ", i)}, {"max_tokens", 300}, {"stream", stream}};
        test::HttpReply reply = test::Post(port(), "/v1/completions", body.dump());
        std::string text;
        if (stream) {
          auto events = test::Events(reply.body);
          if (events.empty() || events.back() != "[DONE]") continue;
          events.pop_back();
          for (const std::string& event : events) text += Json::parse(event)["choices"][0]["text"];
        } else {
          text = Json::parse(reply.body)["choices"][0]["text"];
        }
        whole += text == std::string(200, 'x');
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(whole, 96);
}

TEST_F(StreamingApi, AnIdleReaderDoesNotHoldUpOthers) {
  script_.tokens = Ids("token ");
  script_.finish = engine::FinishReason::kNone;
  test::HttpConnection slow(port());
  slow.SetReceiveBuffer(4096);
  slow.Send(
      test::PostText("/generate", R"({"text":"a","stream":true,"sampling_params":{"max_new_tokens":3000}})"));
  script_.finish = engine::FinishReason::kStop;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(PostOk("/generate", {{"text", "a"}})["text"], "token ");
}

TEST_F(StreamingApi, EveryByteStringIsValidUtf8OnTheWire) {
  std::string bytes;
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  script_.tokens = ByteIds(bytes + "\xF0\x9F\x98");
  const Json body = BodyFor("/v1/chat/completions", {{"max_tokens", 400}});
  const Json native = BodyFor("/generate", {{"sampling_params", {{"max_new_tokens", 400}}}});
  std::string expected = text::ReplaceInvalidUtf8(bytes + "\xF0\x9F\x98");
  EXPECT_EQ(PostOk("/v1/chat/completions", body)["choices"][0]["message"]["content"], expected);
  EXPECT_EQ(StreamedContent(PostStream("/v1/chat/completions", body)), expected);
  EXPECT_EQ(PostOk("/generate", native)["text"], expected);
}

TEST_F(StreamingApi, ShutdownFinishesRunningAnswers) {
  script_.tokens = ByteIds(std::string(60, 'x'));
  engine_->set_step_time(std::chrono::milliseconds(10));
  test::HttpConnection c(port());
  c.Send(test::PostText("/v1/completions", R"({"prompt":"a","max_tokens":100,"stream":true})"));
  ASSERT_TRUE(c.ReadUntil("\"text\":\"x\""));
  auto begin = std::chrono::steady_clock::now();
  server_->Stop(std::chrono::seconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  auto events = test::Events(c.Read().body);
  ASSERT_EQ(events.size(), 61u);  // 60 characters, [DONE]
  EXPECT_EQ(events.back(), "[DONE]");
}

}  // namespace
}  // namespace perigee::server
