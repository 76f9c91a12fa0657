// Ranks as processes under mpirun, through the program: the same answers, and what clients see when a rank
// dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "e2e/process.h"
#include "testing/http_connection.h"
#include "testing/prometheus.h"

namespace perigee::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kModel[] = PERIGEE_MODELS "/tiny-kimi-linear";
constexpr int kRanks = 4;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The command of perigee as `kRanks` processes, with flags that spread prompts over all of them.
std::vector<std::string> UnderMpirun(std::vector<std::string> command) {
  std::vector<std::string> args = {PERIGEE_RUN_RANKS, std::to_string(kRanks), PERIGEE_PROGRAM};
  args.insert(args.end(), command.begin(), command.end());
  for (const char* flag : {"--model-path", kModel, "--tp", "4", "--attn-cp-size", "4", "--enable-prefill-cp",
                           "--cp-strategy", "zigzag"}) {
    args.emplace_back(flag);
  }
  return args;
}

// The fields after the name in /proc/PID/stat, the first being the state; empty when there is no such
// process.
std::vector<std::string> StatOf(pid_t pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  std::vector<std::string> fields;
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(stat.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

bool Exists(pid_t pid) {
  const std::vector<std::string> stat = StatOf(pid);
  return !stat.empty() && stat[0] != "Z" && stat[0] != "X";
}

double CpuSeconds(pid_t pid) {
  const std::vector<std::string> stat = StatOf(pid);
  if (stat.size() < 13) return 0;
  return (std::stod(stat[11]) + std::stod(stat[12])) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A server of four processes.
class ServerOfProcesses {
 public:
  explicit ServerOfProcesses(std::vector<std::string> flags = {}) {
    std::vector<std::string> command = {"serve", "--port", "0"};
    command.insert(command.end(), flags.begin(), flags.end());
    mpirun_ = std::make_unique<Process>(UnderMpirun(command));
    const std::string line = mpirun_->WaitForLine("perigee is listening on ");
    EXPECT_FALSE(line.empty()) << mpirun_->err();
    if (!line.empty()) port_ = std::atoi(line.substr(line.rfind(':') + 1).c_str());
    FindRanks();
  }
  ~ServerOfProcesses() {
    for (const pid_t pid : pids_) {
      if (Exists(pid)) kill(pid, SIGKILL);
    }
  }

  int port() const { return port_; }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  Process& mpirun() { return *mpirun_; }

  // Mpirun's status, when it and all ranks are gone within the time; else -1.
  int AwaitEnd(seconds limit) {
    const Clock::time_point deadline = Clock::now() + limit;
    const int status = mpirun_->Wait(limit);
    for (const pid_t pid : pids_) {
      while (Exists(pid)) {
        if (Clock::now() >= deadline) return -1;
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
    return status;
  }

 private:
  void FindRanks() {
    pids_.assign(kRanks, 0);
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      const std::vector<std::string> stat = StatOf(pid);
      if (pid <= 0 || stat.size() < 2 || std::stoi(stat[1]) != mpirun_->pid()) continue;
      const std::string environment = '\0' + ReadFile(entry.path().string() + "/environ");
      const std::string key = std::string(1, '\0') + "OMPI_COMM_WORLD_RANK=";
      const size_t at = environment.find(key);
      if (at != std::string::npos) pids_.at(std::stoul(environment.substr(at + key.size()))) = pid;
    }
    for (const pid_t pid : pids_) EXPECT_GT(pid, 0);
  }

  std::unique_ptr<Process> mpirun_;
  std::vector<pid_t> pids_;
  int port_ = 0;
};

std::string LongPrompt(int64_t tokens) {
  std::string ids;
  for (int64_t i = 0; i < tokens; ++i) ids += (i == 0 ? "" : ",") + std::to_string(i * 7 % 1700);
  return R"({"input_ids":[)" + ids + R"(],"sampling_params":{"max_new_tokens":1}})";
}

// Two long prompts and a stream that has begun are under way when `hit` does something to rank 2. Each of
// them learns within `limit` that it was rank 2, and everything ends.
void ExpectLossOfRankTwo(ServerOfProcesses& server, int64_t prompt_tokens, void (*hit)(pid_t),
                         milliseconds limit) {
  test::HttpConnection stream(server.port());
  ASSERT_TRUE(stream.Send(test::PostText(
      "/generate",
      R"({"text":"Hello","stream":true,"sampling_params":{"max_new_tokens":100000,"ignore_eos":true}})")));
  ASSERT_TRUE(stream.ReadUntil("data: ", seconds(60)));
  std::vector<std::unique_ptr<test::HttpConnection>> prompts;
  for (int i = 0; i < 2; ++i) {
    prompts.push_back(std::make_unique<test::HttpConnection>(server.port()));
    ASSERT_TRUE(prompts.back()->Send(test::PostText("/generate", LongPrompt(prompt_tokens))));
  }
  // Both are in a long prefill once rank 2 has worked for much longer than the stream could make it.
  const double before = CpuSeconds(server.pid(2));
  const Clock::time_point patience = Clock::now() + seconds(60);
  while (CpuSeconds(server.pid(2)) < before + 1.5 && Clock::now() < patience) {
    std::this_thread::sleep_for(milliseconds(20));
  }

  const Clock::time_point start = Clock::now();
  hit(server.pid(2));
  for (auto& prompt : prompts) {
    const test::HttpReply reply = prompt->Read(seconds(60));
    EXPECT_EQ(reply.status, 503) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr("rank 2"));
  }
  const test::HttpReply streamed = stream.Read(seconds(60));
  const Clock::time_point answered = Clock::now();
  const std::vector<std::string> events = test::Events(streamed.body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_THAT(events[events.size() - 2], HasSubstr("rank 2"));
  EXPECT_THAT(events[events.size() - 2], HasSubstr("error"));
  EXPECT_EQ(events.back(), "[DONE]");
  const auto took = std::chrono::duration_cast<milliseconds>(answered - start);
  EXPECT_LE(took.count(), limit.count());
  ::testing::Test::RecordProperty("answered_ms", std::to_string(took.count()));
  EXPECT_GT(server.AwaitEnd(seconds(10)), 0) << server.mpirun().err();
  const auto ended = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  std::printf("answered after %lld ms, all processes gone after %lld ms\n",
              static_cast<long long>(took.count()), static_cast<long long>(ended.count()));
}

TEST(Processes, ScoresAreThoseOfOneProcess) {
  const std::string folder = ::testing::TempDir();
  const std::string input = PERIGEE_TEST_DATA "/golden/tiny-kimi-linear.json";
  const std::string one = folder + "perigee_one_process.json", four = folder + "perigee_four_processes.json";
  const Finished alone =
      RunToEnd({PERIGEE_PROGRAM, "score", "--model-path", kModel, "--input", input, "--output", one});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const Finished spread = RunToEnd(UnderMpirun({"score", "--input", input, "--output", four}));
  ASSERT_EQ(spread.exit_code, 0) << spread.err;
  EXPECT_GT(ReadFile(one).size(), 1000u);
  EXPECT_TRUE(ReadFile(one) == ReadFile(four));
}

TEST(Processes, WrongCountsAreUsageErrorsBeforeWeightsAreRead) {
  for (const char* command : {"serve", "generate", "score"}) {
    std::vector<std::string> args = {PERIGEE_RUN_RANKS, "2",           PERIGEE_PROGRAM, command, "--tp", "4",
                                     "--model-path",    "/nonexistent"};
    if (std::string(command) == "generate") args.insert(args.end(), {"--prompt", "x"});
    if (std::string(command) == "score") args.insert(args.end(), {"--input", "/nonexistent"});
    const Finished run = RunToEnd(args);
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_THAT(run.err, HasSubstr("--tp 4: mpirun started 2 processes; accepted: --tp 2"));
  }
}

// What one process finds out about the model before weights are read ends all, with the status of one
// process.
TEST(Processes, WhatDoesNotFitTheModelIsAUsageErrorOfAll) {
  const Finished run = RunToEnd({PERIGEE_RUN_RANKS, "3", PERIGEE_PROGRAM, "generate", "--prompt", "x", "--tp",
                                 "3", "--model-path", kModel});
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("--tp 3 does not divide the model's 4 KDA heads"));
}

TEST(Processes, ServesStopsAndCostsNothingWhenIdle) {
  ServerOfProcesses server;
  const std::string hello = R"({"text":"Hello","sampling_params":{"max_new_tokens":8,"temperature":0}})";
  EXPECT_EQ(test::Post(server.port(), "/generate", hello).status, 200);
  const test::MetricsPage page = test::ParseMetrics(test::Get(server.port(), "/metrics").body);
  EXPECT_EQ(page.at("perigee_steps_total{mode=\"head\"}"), 1);
  EXPECT_GT(page.at("perigee_collective_elements_total{collective=\"all_reduce\",rank=\"0\"}"), 0);
  EXPECT_EQ(page.at("perigee_requests_total{outcome=\"finished\"}"), 1);
  double before = 0, after = 0;
  const auto sum = [&] {
    double seconds_of_all = 0;
    for (int r = 0; r < kRanks; ++r) seconds_of_all += CpuSeconds(server.pid(r));
    return seconds_of_all;
  };
  before = sum();
  constexpr seconds kIdle{4};
  std::this_thread::sleep_for(kIdle);
  after = sum();
  std::printf("idle: %.2f %% of one core\n", (after - before) / static_cast<double>(kIdle.count()) * 100);
  EXPECT_LT(after - before, 0.05 * static_cast<double>(kIdle.count()));
  EXPECT_EQ(test::Post(server.port(), "/generate", hello).status, 200) << "after the idle time";
  kill(server.pid(0), SIGTERM);
  EXPECT_EQ(server.AwaitEnd(seconds(30)), 0) << server.mpirun().err();
}

TEST(Processes, KilledRankEndsRequestsAndProcesses) {
  ServerOfProcesses server;
  ExpectLossOfRankTwo(
      server, 120000, [](pid_t pid) { kill(pid, SIGKILL); }, seconds(1));
}

// Small steps: on a loaded machine no piece of work takes as long as the watchdog waits.
TEST(Processes, StoppedRankEndsRequestsAndProcesses) {
  ServerOfProcesses server({"--watchdog-timeout", "8", "--chunked-prefill-size", "256"});
  ExpectLossOfRankTwo(
      server, 8000, [](pid_t pid) { kill(pid, SIGSTOP); }, seconds(8) + seconds(1));
}

// The rank that clients talk to answers nobody any more; the others notice by its silence.
TEST(Processes, StoppedFirstRankEndsAllProcesses) {
  ServerOfProcesses server({"--watchdog-timeout", "8"});
  const Clock::time_point start = Clock::now();
  kill(server.pid(0), SIGSTOP);
  EXPECT_GT(server.AwaitEnd(seconds(20)), 0) << server.mpirun().err();
  EXPECT_THAT(server.mpirun().err(), HasSubstr("rank 0"));
  std::printf("all processes gone after %lld ms\n",
              static_cast<long long>(std::chrono::duration_cast<milliseconds>(Clock::now() - start).count()));
}

}  // namespace
}  // namespace perigee::testing
