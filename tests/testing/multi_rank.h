#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/factory.h"

namespace perigee::test {

// Runs body(communicator) on one thread for each of n ranks of a new in-process world and waits for all.
// A rank whose body returns leaves the world at once, so that a body that ends early (ASSERT_*) makes the
// others fail and not hang. Bodies may use EXPECT_* and ASSERT_*; an exception is a failure too. Ranks that
// are not done after `timeout` fail the test and are aborted; a rank that does not even then come back ends
// the test program.
class RankRun {
 public:
  using Body = std::function<void(comm::Communicator&)>;

  static void Run(std::string_view transport, int n, const Body& body, std::chrono::milliseconds timeout) {
    auto world = comm::MakeInProcessWorld(transport, n);
    ASSERT_TRUE(world.ok()) << world.status().message();
    RankRun run(std::move(world).value());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < run.ranks_.size(); ++r) threads.emplace_back([&, r] { run.RunOne(r, body); });
    run.AwaitAll(timeout);
    for (std::thread& t : threads) t.join();
  }

 private:
  explicit RankRun(std::vector<std::unique_ptr<comm::Communicator>> ranks)
      : ranks_(std::move(ranks)), running_(ranks_.size()) {}

  void RunOne(size_t r, const Body& body) {
    SetTraceRank(static_cast<int>(r));
    try {
      body(*ranks_[r]);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << r << " threw " << e.what();
    }
    const std::lock_guard lock(mutex_);
    ranks_[r].reset();
    if (--running_ == 0) all_done_.notify_one();
  }

  void AwaitAll(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return running_ == 0; };
    if (all_done_.wait_for(lock, timeout, done)) return;
    std::string late;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r] == nullptr) continue;
      late += (late.empty() ? "rank " : ", rank ") + std::to_string(r);
      ranks_[r]->Abort(Unavailable("the test's time is up"));
    }
    ADD_FAILURE() << "not done after " << timeout.count() << " ms: " << late;
    if (all_done_.wait_for(lock, std::chrono::seconds(10), done)) return;
    std::fprintf(stderr, "ranks do not come back after Abort\n");
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable all_done_;
  std::vector<std::unique_ptr<comm::Communicator>> ranks_;
  size_t running_;
};

// Where ranks are processes under mpirun, the body runs once in each process, and so does the whole test
// program: testing/mpi_main.cc sets this.
inline void (*run_on_processes)(int n, const RankRun::Body& body,
                                std::chrono::milliseconds timeout) = nullptr;

inline void RunRanks(std::string_view transport, int n, const RankRun::Body& body,
                     std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
  if (transport != "mpi") return RankRun::Run(transport, n, body, timeout);
  ASSERT_NE(run_on_processes, nullptr);
  run_on_processes(n, body, timeout);
}

}  // namespace perigee::test
