// The end of ranks that are processes. One test a program: nothing works after it, and mpirun sees processes
// that end without a goodbye.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "comm/process_ranks.h"
#include "testing/mpi_ranks.h"

namespace perigee::comm {
namespace {

// A rank that takes another way and skips a collective: the others do not wait for longer than the watchdog's
// time, and everybody, in whatever it waits, learns who it was.
TEST(ProcessFailure, ARankThatSkipsACollectiveIsNamedEverywhere) {
  ProcessRanks& ranks = test::ProcessRanksOfTest();
  std::vector<float> data(10);
  ASSERT_TRUE(ranks.world().AllReduce(data).ok());
  const std::atomic<uint64_t> work{1};
  ranks.BeginStep(&work);
  const auto start = std::chrono::steady_clock::now();
  if (ranks.rank() == 1) {
    ranks.EndStep();
    EXPECT_FALSE(ranks.Receive().has_value());
  }
  const std::string reason = ranks.world().AllReduce(data).message();
  EXPECT_NE(reason.find("rank 1 takes no part in it after"), std::string::npos) << reason;
  EXPECT_LT(std::chrono::steady_clock::now() - start, test::kTestWatchdog + std::chrono::seconds(2));
  EXPECT_EQ(ranks.status().message(), reason);
  EXPECT_EQ(ranks.AllGather({}).status().message(), reason);
  std::string heard;
  ranks.OnFailure([&](const Status& status) { heard = status.message(); });
  EXPECT_EQ(heard, reason);
  ranks.EndStep();
}

}  // namespace
}  // namespace perigee::comm
