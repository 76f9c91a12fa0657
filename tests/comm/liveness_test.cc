#include "comm/liveness.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace perigee::comm {
namespace {

using std::chrono::milliseconds;
using Clock = Liveness::Clock;

constexpr milliseconds kTimeout{8000};
constexpr Clock::time_point kStart{std::chrono::hours(1)};

// Four ranks as rank 0 sees them, a period at a time.
class LivenessTest : public testing::Test {
 protected:
  LivenessTest() { pulses_.fill({}); }

  // Lets time pass; every rank that speaks sends its pulse each period. The first verdict, if any.
  std::optional<Liveness::Verdict> Pass(milliseconds time) {
    for (const Clock::time_point end = now_ + time; now_ < end;) {
      now_ += Liveness::Period(kTimeout);
      for (size_t r = 0; r < pulses_.size(); ++r) {
        if (speaks_[r]) liveness_.Observe(static_cast<int>(r), pulses_[r], now_);
      }
      if (auto verdict = liveness_.Check(now_)) return verdict;
    }
    return std::nullopt;
  }

  Clock::time_point now_ = kStart;
  Liveness liveness_{0, 4, kTimeout, kStart};
  std::array<Pulse, 4> pulses_{};
  std::array<bool, 4> speaks_ = {true, true, true, true};
};

TEST_F(LivenessTest, PeriodsFollowTheTimeoutWithinBounds) {
  EXPECT_EQ(Liveness::Period(milliseconds(8000)), milliseconds(1000));
  EXPECT_EQ(Liveness::Period(milliseconds(2000)), milliseconds(250));
  EXPECT_EQ(Liveness::Period(milliseconds(40)), milliseconds(20));
  EXPECT_EQ(Liveness::Period(std::chrono::hours(1)), milliseconds(1000));
}

TEST_F(LivenessTest, IdleRanksThatSpeakAreWell) {
  EXPECT_FALSE(Pass(std::chrono::hours(1)));
}

TEST_F(LivenessTest, SilenceIsSeenWithinTheTimeout) {
  ASSERT_FALSE(Pass(milliseconds(20000)));
  speaks_[2] = false;
  const Clock::time_point stopped = now_;
  const auto verdict = Pass(std::chrono::hours(1));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 2);
  EXPECT_EQ(
      verdict->reason,
      "nothing was heard of rank 2 for 8 s (--watchdog-timeout): its process is stopped or its host is gone");
  EXPECT_LE(now_ - stopped, kTimeout);
  EXPECT_GE(now_ - stopped, kTimeout / 2);
}

TEST_F(LivenessTest, WhoSaidGoodbyeMayBeSilent) {
  speaks_[2] = false;
  liveness_.Forget(2);
  EXPECT_FALSE(Pass(std::chrono::hours(1)));
}

// This process was stopped and goes on: what the others said meanwhile has not been read yet.
TEST_F(LivenessTest, OwnPauseIsNotTheOthersFault) {
  ASSERT_FALSE(Pass(milliseconds(20000)));
  now_ += std::chrono::minutes(10);
  EXPECT_FALSE(liveness_.Check(now_));
  EXPECT_FALSE(Pass(milliseconds(20000)));
  speaks_[1] = false;
  EXPECT_TRUE(Pass(milliseconds(20000)));
}

TEST_F(LivenessTest, LongStepsWithProgressAreWell) {
  for (uint64_t step = 0; step < 100; ++step) {
    for (Pulse& p : pulses_) p = {step % 2 == 0 ? Activity::kComputing : Activity::kWaiting, step};
    ASSERT_FALSE(Pass(milliseconds(7000)));
  }
}

TEST_F(LivenessTest, OneRankThatGetsOnIsEnough) {
  for (Pulse& p : pulses_) p = {Activity::kWaiting, 5};
  for (uint64_t step = 0; step < 20; ++step) {
    pulses_[3] = {Activity::kComputing, step};
    ASSERT_FALSE(Pass(milliseconds(7000)));
  }
}

TEST_F(LivenessTest, WhoComputesWithoutEndIsNamed) {
  for (Pulse& p : pulses_) p = {Activity::kWaiting, 17};
  pulses_[3] = {Activity::kComputing, 16};
  const auto verdict = Pass(milliseconds(20000));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 3);
  EXPECT_EQ(
      verdict->reason,
      "no rank has got on with the step for 8 s (--watchdog-timeout): rank 3 computes and does not get on "
      "after 16 collectives");
}

// One long kernel.
TEST_F(LivenessTest, WorkWithoutCollectivesIsProgress) {
  for (Pulse& p : pulses_) p = {Activity::kWaiting, 17};
  for (uint64_t piece = 0; piece < 50; ++piece) {
    pulses_[3] = {Activity::kComputing, 16, piece};
    ASSERT_FALSE(Pass(milliseconds(7000)));
  }
  EXPECT_TRUE(Pass(milliseconds(20000)));
}

// A rank that takes another way and skips a collective.
TEST_F(LivenessTest, WhoIsIdleWhileOthersWaitIsNamed) {
  for (Pulse& p : pulses_) p = {Activity::kWaiting, 17};
  pulses_[1] = {Activity::kIdle, 18};
  const auto verdict = Pass(milliseconds(20000));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_NE(verdict->reason.find("rank 1 takes no part in it after 18 collectives"), std::string::npos)
      << verdict->reason;
}

TEST_F(LivenessTest, WhenAllWaitTheOneBehindIsNamed) {
  for (Pulse& p : pulses_) p = {Activity::kWaiting, 17};
  pulses_[2].collectives = 15;
  const auto verdict = Pass(milliseconds(20000));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 2);
  EXPECT_NE(verdict->reason.find("rank 2 waits for the others after 15 collectives"), std::string::npos);
}

}  // namespace
}  // namespace perigee::comm
