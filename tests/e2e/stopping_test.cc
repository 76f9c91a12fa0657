// What signals do to a server: the first lets answers finish for a time, the second ends it at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/process.h"
#include "testing/http_connection.h"

namespace perigee::testing {
namespace {

using Json = nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr char kModel[] = PERIGEE_MODELS "/tiny-kimi-linear";
constexpr char kStopping[] = "stopping: running answers may finish";

class Stopping : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> args = {PERIGEE_PROGRAM, "serve", "--model-path", kModel, "--port", "0"};
    args.insert(args.end(), flags.begin(), flags.end());
    server_ = std::make_unique<Process>(args);
    const std::string line = server_->WaitForLine("perigee is listening on ");
    ASSERT_FALSE(line.empty()) << server_->err();
    port_ = std::stoi(line.substr(line.rfind(':') + 1));
  }

  // A stream of so many tokens, under way.
  void Ask(int64_t tokens) {
    stream_ = std::make_unique<test::HttpConnection>(port_);
    const Json body = {
        {"text", "The quiet river follows"},
        {"stream", true},
        {"sampling_params", {{"temperature", 0}, {"max_new_tokens", tokens}, {"ignore_eos", true}}}};
    ASSERT_TRUE(stream_->Send(test::PostText("/generate", body.dump())));
    ASSERT_TRUE(stream_->ReadUntil("data: "));
  }

  void ExpectEndAtOnce(int first, int second) {
    Start();
    Ask(100'000);
    server_->Signal(first);
    ASSERT_TRUE(server_->WaitForError(kStopping)) << server_->err();
    EXPECT_EQ(server_->Wait(seconds(0)), -1) << "the answer may finish";
    server_->Signal(second);
    EXPECT_EQ(server_->Wait(seconds(20)), 1);
    EXPECT_FALSE(stream_->Read().whole);
  }

  std::unique_ptr<Process> server_;
  std::unique_ptr<test::HttpConnection> stream_;
  int port_ = 0;
};

TEST_F(Stopping, TheFirstSignalLetsAnswersFinish) {
  Start();
  Ask(600);
  server_->Signal(SIGTERM);
  ASSERT_TRUE(server_->WaitForError(kStopping)) << server_->err();
  EXPECT_FALSE(test::HttpConnection(port_).Send(test::PostText("/generate", "{}")) &&
               test::HttpConnection(port_).Read().status != 0)
      << "nothing new is taken";
  const test::HttpReply reply = stream_->Read(seconds(120));
  const std::vector<std::string> events = test::Events(reply.body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["meta_info"]["completion_tokens"], 600);
  EXPECT_EQ(server_->Wait(), 0) << server_->err();
}

TEST_F(Stopping, WhatTheDrainTimeoutCutsOffIsAnErrorOfTheStreamAndOfTheExit) {
  Start({"--drain-timeout", "1"});
  Ask(100'000);
  server_->Signal(SIGTERM);
  const test::HttpReply reply = stream_->Read(seconds(120));
  EXPECT_TRUE(reply.whole);
  const std::vector<std::string> events = test::Events(reply.body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  const std::string message = "the server is shutting down and the answer was not finished within 1 s";
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["message"], message);
  EXPECT_EQ(server_->Wait(), 1);
  EXPECT_THAT(server_->err(), HasSubstr("POST /generate: 503: " + message));
  EXPECT_THAT(server_->err(), HasSubstr("perigee: 1 running requests were cut off after 1 s"));
}

TEST_F(Stopping, TheSecondInterruptEndsAtOnce) {
  ExpectEndAtOnce(SIGINT, SIGINT);
}

TEST_F(Stopping, TheSecondTerminateEndsAtOnce) {
  ExpectEndAtOnce(SIGTERM, SIGTERM);
}

TEST_F(Stopping, APortInUseIsOneLine) {
  Start();
  const std::string port = std::to_string(port_);
  const Finished second = RunToEnd({PERIGEE_PROGRAM, "serve", "--model-path", kModel, "--port", port});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(port));
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 0);
}

}  // namespace
}  // namespace perigee::testing
