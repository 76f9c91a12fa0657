// The life of a server: it answers while it loads; the first signal lets answers finish for a time, the
// second ends it at once.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
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

// A port that was free a moment ago: the server says its own only when it is ready.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

// While this holds a file, nobody else's open() of it returns (a write lease).
class HeldFile {
 public:
  explicit HeldFile(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    signal(SIGIO, SIG_IGN);  // how the kernel tells that somebody waits
    held_ = fd_ >= 0 && fcntl(fd_, F_SETLEASE, F_WRLCK) == 0;
  }
  ~HeldFile() { Release(); }
  bool held() const { return held_; }
  void Release() {
    if (held_) fcntl(fd_, F_SETLEASE, F_UNLCK);
    if (fd_ >= 0) close(fd_);
    held_ = false;
    fd_ = -1;
  }

 private:
  int fd_;
  bool held_ = false;
};

TEST(Loading, ThePortAnswersBeforeTheWeightsAreRead) {
  const std::string folder = "/dev/shm/perigee_loading_" + std::to_string(getpid());
  std::filesystem::copy(kModel, folder);
  // Read after the port is open and before any weight (which are opened without waiting).
  HeldFile vocabulary(folder + "/tiktoken.model");
  if (!vocabulary.held()) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << "no leases on files here";
  }
  const int port = FreePort();
  Process server({PERIGEE_PROGRAM, "serve", "--model-path", folder, "--port", std::to_string(port)});
  test::HttpReply health;
  while (health.status == 0 && server.Wait(seconds(0)) < 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    health = test::Get(port, "/health");
  }
  EXPECT_EQ(health.status, 503) << server.err();
  EXPECT_THAT(health.body, HasSubstr("the model is still loading"));
  const test::HttpReply refused = test::Post(port, "/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("the model is still loading"));
  vocabulary.Release();
  EXPECT_NE(server.WaitForLine("perigee is listening on "), "") << server.err();
  EXPECT_EQ(test::Get(port, "/health").status, 200);
  EXPECT_EQ(test::Post(port, "/v1/completions", R"({"prompt":"a"})").status, 200);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace perigee::testing
