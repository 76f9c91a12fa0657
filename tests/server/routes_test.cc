#include <thread>

#include "base/strings.h"
#include "server/api_fixture.h"

namespace perigee::server {
namespace {

using std::chrono::milliseconds;

using RoutesApi = ApiTest;

TEST_F(RoutesApi, Models) {
  Json reply = Json::parse(test::Get(port(), "/v1/models").body);
  EXPECT_EQ(reply["object"], "list");
  ASSERT_EQ(reply["data"].size(), 1u);
  EXPECT_EQ(reply["data"][0]["id"], "tiny-kimi-linear");
  EXPECT_EQ(reply["data"][0]["object"], "model");
  EXPECT_EQ(reply["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(Json::parse(test::Get(port(), "/v1/models/tiny-kimi-linear").body), reply["data"][0]);
  test::HttpReply unknown = test::Get(port(), "/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Json::parse(unknown.body)["error"]["code"], "model_not_found");
}

TEST_F(RoutesApi, FlushCache) {
  EXPECT_EQ(PostOk("/flush_cache", Json::object())["status"], "ok");
  EXPECT_EQ(test::Post(port(), "/flush_cache", "").status, 200) << "a body is not needed";
  EXPECT_EQ(engine_->flushes(), 2);
  EXPECT_EQ(test::Get(port(), "/flush_cache").status, 405);
}

TEST_F(RoutesApi, ServedNames) {
  Restart({.served_model_name = "org/my model"});
  EXPECT_EQ(test::Get(port(), "/v1/models/org%2Fmy%20model").status, 200);
  EXPECT_EQ(test::Get(port(), "/v1/models/org/my%20model").status, 200);
  EXPECT_EQ(test::Get(port(), "/v1/models/%2").status, 404);
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    Json body = path == std::string_view("/v1/completions") ? Json{{"prompt", "hi"}} : Chat("hi");
    for (const char* name : {"org/my model", "default", "/models/tiny-kimi-linear"}) {
      body["model"] = name;
      EXPECT_EQ(PostOk(path, body)["model"], "org/my model");
    }
    body["model"] = "gpt-9";
    EXPECT_EQ(PostError(404, path, body)["code"], "model_not_found");
  }
}

TEST_F(RoutesApi, ModelInfo) {
  Json info = Json::parse(test::Get(port(), "/get_model_info").body);
  EXPECT_EQ(info["model_path"], "/models/tiny-kimi-linear");
  EXPECT_EQ(info["is_generation"], true);
  EXPECT_EQ(info["context_length"], 4096);
}

TEST_F(RoutesApi, ServerInfoHasTheMemoryPlan) {
  Json info = Json::parse(test::Get(port(), "/server_info").body);
  EXPECT_EQ(info["max_running_requests"], 3);
  const Json& plan = info["memory_plan"];
  EXPECT_EQ(plan["per_rank"][0]["weights"], 1000);
  EXPECT_EQ(plan["per_rank"][0]["total"], 1239);
  EXPECT_EQ(plan["per_rank"][0]["latents_per_token"], 8);
  EXPECT_EQ(plan["per_rank"][0]["states_per_request"], 9);
  EXPECT_EQ(plan["total"], 1299);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["tokens"], 4 * 4096);
  EXPECT_EQ(plan["snapshots"], 6);
  EXPECT_EQ(plan["longest_request"], 4096);
  EXPECT_EQ(plan["mem_fraction_static"], 0.5);
  EXPECT_EQ(info["memory_peak"][0]["workspace"], 5);
}

TEST_F(RoutesApi, UnknownPathsAndMethods) {
  for (const char* path : {"/", "/v1", "/v1/models/", "/v1/embeddings", "/generate/x", "//health"}) {
    test::HttpReply reply = test::Get(port(), path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "invalid_request_error");
  }
  test::HttpReply reply = test::Get(port(), "/v1/chat/completions");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("allow"), "POST");
  reply = test::Post(port(), "/v1/models", "{}");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("allow"), "GET");
  EXPECT_EQ(test::Post(port(), "/health", "{}").status, 405);
  EXPECT_EQ(test::Get(port(), "/health?x=1").status, 200);
}

TEST_F(RoutesApi, ContentTypes) {
  auto status = [&](std::string_view type) {
    test::HttpConnection c(port());
    std::string body = R"({"prompt":"a"})";
    c.Send(StrCat("POST /v1/completions HTTP/1.1\r\nHost: h\r\n", type, "Content-Length: ", body.size(),
                  "\r\n\r\n", body));
    return c.Read().status;
  };
  EXPECT_EQ(status(""), 200);
  EXPECT_EQ(status("content-type: Application/JSON ; charset=utf-8\r\n"), 200);
  EXPECT_EQ(status("Content-Type: text/plain\r\n"), 400);
  EXPECT_EQ(status("Content-Type: application/x-www-form-urlencoded\r\n"), 400);
}

TEST(Loading, ListensBeforeTheModelIsThere) {
  auto server = std::move(Server::Start({.port = 0}).value());
  for (const char* path :
       {"/health", "/health_generate", "/v1/models", "/v1/models/x", "/get_model_info", "/metrics"}) {
    const test::HttpReply reply = test::Get(server->port(), path);
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_NE(reply.body.find("the model is still loading"), std::string::npos) << path;
  }
  EXPECT_EQ(test::Post(server->port(), "/flush_cache", "").status, 503);
  EXPECT_EQ(test::Post(server->port(), "/v1/completions", R"({"prompt":"a"})").status, 503);
  EXPECT_EQ(test::Get(server->port(), "/nowhere").status, 404);
  test::FakeEngine engine([](const engine::Request&) { return test::Script{.tokens = Ids("ok")}; },
                          TinyInfo());
  ASSERT_TRUE(server->SetReady(&engine, &TinyTokenizer()).ok());
  EXPECT_EQ(test::Get(server->port(), "/health").status, 200);
  EXPECT_EQ(test::Post(server->port(), "/v1/completions", R"({"prompt":"a"})").status, 200);
  server.reset();
}

TEST_F(RoutesApi, APortInUseIsAnError) {
  auto second = Server::Start({.port = port()});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(StrCat("127.0.0.1:", port())), std::string::npos);
}

TEST_F(RoutesApi, HealthTellsAStallFromWork) {
  Restart({.stall_limit = milliseconds(1500)});
  script_.stall = true;
  test::HttpConnection stuck(port());
  stuck.Send(test::PostText("/generate", R"({"text":"a"})"));
  int status = 200;
  for (int i = 0; i < 100 && status == 200; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    status = test::Get(port(), "/health").status;
  }
  EXPECT_EQ(status, 503);
  stuck.Close();
  for (int i = 0; i < 100 && status == 503; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    status = test::Get(port(), "/health").status;
  }
  EXPECT_EQ(status, 200);

  // Busy and advancing for longer than the limit.
  script_ = {.tokens = Ids("a"), .finish = engine::FinishReason::kNone};
  engine_->set_step_time(milliseconds(20));
  test::HttpConnection busy(port());
  busy.Send(test::PostText("/generate", R"({"text":"a","sampling_params":{"max_new_tokens":2000}})"));
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(test::Get(port(), "/health").status, 200);
    std::this_thread::sleep_for(milliseconds(100));
  }
}

TEST_F(RoutesApi, ALostRankIsNotHealthy) {
  engine_->set_failure("rank 2 is gone");
  const test::HttpReply reply = test::Get(port(), "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("rank 2 is gone"), std::string::npos);
}

TEST_F(RoutesApi, HealthGenerateRunsAToken) {
  EXPECT_EQ(test::Get(port(), "/health_generate").status, 200);
  ASSERT_EQ(engine_->requests().size(), 1u);
  EXPECT_EQ(engine_->last_request().sampling.max_new_tokens, 1);
  engine_->set_refusal(Unavailable("the ranks are lost"));
  EXPECT_EQ(test::Get(port(), "/health_generate").status, 503);
  engine_->set_refusal(Status::Ok());
  script_ = {.tokens = {}, .finish = engine::FinishReason::kError, .error = InternalError("broken")};
  EXPECT_EQ(test::Get(port(), "/health_generate").status, 500);
  EXPECT_EQ(test::Post(port(), "/health_generate", "").status, 405);
}

TEST_F(RoutesApi, HealthGenerateGivesUpInTime) {
  Restart({.stall_limit = milliseconds(200)});
  script_.stall = true;
  const test::HttpReply reply = test::Get(port(), "/health_generate");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("200 ms"), std::string::npos);
  EXPECT_TRUE(engine_->WaitIdle()) << "its request is taken back";
}

TEST_F(RoutesApi, WaitReturnsWhenStopped) {
  std::thread stopper([&] {
    std::this_thread::sleep_for(milliseconds(50));
    server_->Stop(milliseconds(0));
  });
  server_->Wait();
  stopper.join();
  EXPECT_FALSE(test::HttpConnection(port()).connected());
}

}  // namespace
}  // namespace perigee::server
