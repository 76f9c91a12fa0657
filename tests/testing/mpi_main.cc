// The main program of tests whose ranks are processes. mpirun starts it once a rank, and every process goes
// through the same tests in the same order; a test that wants ranks gets this process's.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/process_ranks.h"
#include "testing/mpi_ranks.h"
#include "testing/multi_rank.h"

namespace perigee::test {
namespace {

comm::ProcessRanks* ranks = nullptr;

// Aborts the communicator when it is not destroyed in time, and the program when that does not help.
class Deadline {
 public:
  Deadline(comm::Communicator* world, std::chrono::milliseconds timeout)
      : thread_([this, world, timeout] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, timeout, [this] { return is_done_; })) return;
          ADD_FAILURE() << "not done after " << timeout.count() << " ms";
          world->Abort(Unavailable("the test's time is up"));
          if (done_.wait_for(lock, std::chrono::seconds(10), [this] { return is_done_; })) return;
          std::fprintf(stderr, "rank %d does not come back after Abort\n", ranks->rank());
          std::abort();
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;
};

void RunOnProcesses(int n, const RankRun::Body& body, std::chrono::milliseconds timeout) {
  ASSERT_LE(n, ranks->size());
  auto world = ranks->world().Split(ranks->rank() < n ? 0 : 1, ranks->rank());
  ASSERT_TRUE(world.ok()) << world.status().message();
  if (ranks->rank() >= n) return;
  const Deadline deadline(world->get(), timeout);
  body(**world);
}

// Prints failures and nothing else.
class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "rank %d, %s.%s, %s:%d: %s\n", ranks->rank(),
                 test == nullptr ? "" : test->test_suite_name(), test == nullptr ? "" : test->name(),
                 result.file_name(), result.line_number(), result.message());
  }
};

}  // namespace

comm::ProcessRanks& ProcessRanksOfTest() {
  return *ranks;
}

static void ReportFailuresOnly() {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly);
}

}  // namespace perigee::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto started = perigee::comm::ProcessRanks::Start(perigee::test::kTestWatchdog);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().message().c_str());
    return 1;
  }
  perigee::test::ranks = started->get();
  perigee::test::run_on_processes = perigee::test::RunOnProcesses;
  // One report of what passes is enough.
  if ((*started)->rank() != 0) perigee::test::ReportFailuresOnly();
  return RUN_ALL_TESTS();
}
