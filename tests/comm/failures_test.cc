#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/factory.h"
#include "comm/transports.h"
#include "testing/multi_rank.h"

namespace perigee::comm {
namespace {

using test::Random;
using test::RanksAreProcesses;
using test::RunRanks;

constexpr std::chrono::milliseconds kLongEnoughToSleep{20};

class Failures : public testing::TestWithParam<test::WorldCase> {
 protected:
  void Run(const test::RankRun::Body& body) { RunRanks(GetParam().transport, GetParam().size, body); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Failures, testing::ValuesIn(test::AllWorlds()), test::WorldName);

// Where somebody else waits, or two ranks of odd number exist.
using FailuresOfTwo = Failures;
INSTANTIATE_TEST_SUITE_P(Worlds, FailuresOfTwo, testing::ValuesIn(test::AllWorlds(2)), test::WorldName);
using FailuresOfFour = Failures;
INSTANTIATE_TEST_SUITE_P(Worlds, FailuresOfFour, testing::ValuesIn(test::AllWorlds(4)), test::WorldName);

// Every way to wait for other ranks.
using Call = std::function<Status(Communicator&)>;
const std::vector<Call>& AllCalls() {
  static const auto ones = [](Communicator& c) {
    return std::vector<int64_t>(static_cast<size_t>(c.size()), 1);
  };
  static const std::vector<Call> calls = {
      [](Communicator& c) {
        std::vector<float> one(1), all(static_cast<size_t>(c.size()));
        return c.AllGather(one, all, ones(c));
      },
      [](Communicator& c) {
        std::vector<float> one(1), all(static_cast<size_t>(c.size()));
        return c.ReduceScatter(all, one, ones(c));
      },
      [](Communicator& c) {
        std::vector<float> data(100);
        return c.AllReduce(data);
      },
      [](Communicator& c) {
        std::vector<float> send(static_cast<size_t>(c.size())), receive(send.size());
        return c.AllToAll(send, ones(c), receive, ones(c));
      },
      [](Communicator& c) {
        std::vector<float> data(100);
        return c.Broadcast(data, 0);
      },
      [](Communicator& c) { return c.Split(0, c.rank()).status(); },
  };
  return calls;
}

void ExpectAborted(const Status& status, const std::string& reason) {
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), reason);
}

TEST_P(Failures, AbortWakesAllWaitersWithTheReason) {
  for (const Call& call : AllCalls()) {
    Run([&](Communicator& c) {
      if (c.rank() == c.size() - 1) {
        // Not the rank's own thread: a watchdog's.
        std::thread([&] {
          std::this_thread::sleep_for(kLongEnoughToSleep);
          c.Abort(Unavailable("stopping"));
          c.Abort(Unavailable("a later reason"));
        }).join();
      }
      ExpectAborted(call(c), "stopping");
      for (const Call& later : AllCalls()) ExpectAborted(later(c), "stopping");
      EXPECT_EQ(c.traffic().TotalElements(), 0u);
    });
  }
}

TEST_P(Failures, AbortReachesGroupsBelowAndNotAbove) {
  Run([&](Communicator& world) {
    auto child = std::move(world.Split(0, world.rank()).value());
    auto grandchild = std::move(child->Split(0, world.rank()).value());
    auto other = std::move(world.Split(0, world.rank()).value());
    auto below_other = std::move(other->Split(0, world.rank()).value());
    other.reset();
    const Call& sum = AllCalls()[2];
    const int last = world.size() - 1;
    if (world.rank() == last) {
      std::this_thread::sleep_for(kLongEnoughToSleep);
      child->Abort(Unavailable("child"));
    }
    ExpectAborted(sum(*grandchild), "child");
    ExpectAborted(sum(*child), "child");
    EXPECT_TRUE(sum(world).ok());
    if (world.rank() == last) {
      std::this_thread::sleep_for(kLongEnoughToSleep);
      world.Abort(Unavailable("world"));
    }
    ExpectAborted(sum(*below_other), "world");
    ExpectAborted(sum(world), "world");
    ExpectAborted(sum(*child), "child");
  });
}

TEST_P(FailuresOfTwo, RankThatLeavesEndsTheWaitOfTheOthers) {
  for (const Call& call : AllCalls()) {
    Run([&](Communicator& c) {
      EXPECT_TRUE(AllCalls()[0](c).ok());
      if (c.rank() == 1) {
        std::this_thread::sleep_for(kLongEnoughToSleep);
        return;
      }
      for (int repeat = 0; repeat < 2; ++repeat) {
        const Status status = call(c);
        EXPECT_EQ(status.code(), StatusCode::kInternal);
        EXPECT_EQ(status.message(), "rank 1 left its group of " + std::to_string(c.size()) + " ranks");
      }
    });
  }
}

// Names the rank by its number in the world.
TEST_P(FailuresOfFour, RankThatLeavesASplitGroup) {
  Run([&](Communicator& world) {
    auto group = std::move(world.Split(world.rank() % 2, world.rank()).value());
    if (world.rank() == 3) group.reset();
    if (world.rank() == 1) {
      const Status status = AllCalls()[2](*group);
      EXPECT_EQ(status.message(), "rank 3 left its group of " + std::to_string(group->size()) + " ranks");
    }
    EXPECT_TRUE(AllCalls()[0](world).ok()) << "leaving a part is not leaving the whole";
  });
}

// Whoever finishes first may go: that must not spoil the last collective of the others.
TEST_P(Failures, LeavingAfterTheLastCollectiveIsClean) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    Run([&](Communicator& c) {
      const Status status = AllCalls()[static_cast<size_t>(repeat) % AllCalls().size()](c);
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }
}

// Aborted at any moment, a collective has happened for all ranks of a process or for none, and buffers that
// are freed right after the call are not touched by others (the address sanitizer watches).
TEST_P(Failures, AbortAtAnyMomentIsAllOrNothing) {
  Random random(11);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const auto delay = std::chrono::microseconds(random.Below(400));
    std::vector<int64_t> rounds(static_cast<size_t>(GetParam().size));
    Run([&](Communicator& c) {
      std::thread aborter;
      if (c.rank() == 0) {
        aborter = std::thread([&] {
          std::this_thread::sleep_for(delay);
          c.Abort(Unavailable("now"));
        });
      }
      while (true) {
        auto data = std::make_unique<std::array<float, 3000>>();
        data->fill(1);
        const Status status = c.AllReduce(*data);
        if (!status.ok()) break;
        if ((*data)[2999] != static_cast<float>(c.size())) ADD_FAILURE() << "wrong sum";
        ++rounds[static_cast<size_t>(c.rank())];
      }
      if (aborter.joinable()) aborter.join();
    });
    if (RanksAreProcesses(GetParam())) continue;
    for (const int64_t n : rounds) EXPECT_EQ(n, rounds[0]);
  }
}

TEST_P(FailuresOfTwo, WaitingCostsNoProcessorTime) {
  Run([&](Communicator& c) {
    if (c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto cpu_ms = [] {
      timespec t{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
    };
    const double before = cpu_ms();
    EXPECT_TRUE(AllCalls()[2](c).ok());
    EXPECT_LT(cpu_ms() - before, 5) << "rank " << c.rank();
  });
}

// The runner's own promise: a rank that hangs fails the test.
TEST(RankRun, HangIsAFailure) {
  std::atomic<bool> woken = false;
  Status status;
  EXPECT_NONFATAL_FAILURE(RunRanks(
                              "thread", 2,
                              [&](Communicator& c) {
                                if (c.rank() == 0) {
                                  status = AllCalls()[2](c);
                                  woken = true;
                                  woken.notify_one();
                                }
                                woken.wait(false);
                              },
                              std::chrono::milliseconds(50)),
                          "not done after 50 ms: rank 0, rank 1");
  EXPECT_EQ(status.message(), "the test's time is up");
}

// Calls that do not match are our defect: the process ends and says which rank asked for what.
class Mismatch : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void Run(const test::RankRun::Body& body) { RunRanks("thread", 2, body); }
};

TEST_F(Mismatch, CallsAndCounts) {
  std::vector<float> two(2), three(3);
  EXPECT_DEATH(
      Run([&](Communicator& c) { (void)(c.rank() == 0 ? c.AllReduce(two) : c.Broadcast(two, 0)); }),
      "rank [01] of 2 calls (AllReduce while rank 1 calls Broadcast|Broadcast while rank 0 calls AllR)");
  EXPECT_DEATH(Run([&](Communicator& c) { (void)c.AllReduce(c.rank() == 0 ? two : three); }),
               "rank [01] of 2: AllReduce with counts \\[[23]\\], rank [01] has \\[[32]\\]");
  EXPECT_DEATH(Run([&](Communicator& c) { (void)c.Broadcast(two, c.rank()); }),
               "rank [01] of 2: Broadcast of \\(size, root\\) with counts \\[2, [01]\\]");
  EXPECT_DEATH(Run([&](Communicator& c) {
                 std::vector<float> mine(2), all(4 - static_cast<size_t>(c.rank()));
                 const std::vector<int64_t> counts = {2 - c.rank(), 2};
                 (void)c.AllGather(mine, all, counts);
               }),
               "rank [01] of 2: AllGather with counts \\[[12], 2\\], rank [01] has \\[[12], 2\\]");
  EXPECT_DEATH(Run([&](Communicator& c) {
                 std::vector<float> send(2), receive(c.rank() == 0 ? 2 : 3);
                 const std::vector<int64_t> sent = {1, 1}, expected = {c.rank() == 0 ? 1 : 2, 1};
                 (void)c.AllToAll(send, sent, receive, expected);
               }),
               "rank 1 of 2: AllToAll expects 2 elements of rank 0, which sends 1");
  EXPECT_DEATH(Run([&](Communicator& c) { (void)c.Split(0, 5); }), "both gave key 5");
}

TEST_F(Mismatch, BuffersAndCounts) {
  auto world = std::move(MakeInProcessWorld("local", 1).value());
  Communicator& c = *world[0];
  std::vector<float> two(2), three(3);
  const std::vector<int64_t> counts = {2}, too_many = {2, 0}, negative = {-2};
  EXPECT_DEATH((void)c.AllGather(two, three, counts), "rank 0 of 1: AllGather: counts add up to 2");
  EXPECT_DEATH((void)c.AllGather(three, two, counts), "this rank's count is 2, the buffer has 3");
  EXPECT_DEATH((void)c.AllGather(two, two, counts), "send and receive overlap");
  EXPECT_DEATH((void)c.ReduceScatter(two, std::span(two).first(0), too_many), "ReduceScatter: 2 counts");
  EXPECT_DEATH((void)c.ReduceScatter(two, three, negative), "count -2");
  EXPECT_DEATH((void)c.AllToAll(three, counts, two, counts), "AllToAll: counts add up to 2");
  EXPECT_DEATH((void)c.Broadcast(two, 1), "root 1");
}

}  // namespace
}  // namespace perigee::comm
