#include "comm/group_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace perigee::comm {
namespace {

using Bytes = std::vector<std::byte>;

// The board of world rank 5, with what it sends.
struct BoardTest : testing::Test {
  static GroupBoard::Send Into(std::vector<std::pair<int, Bytes>>& sent) {
    return [&sent](int to, std::span<const std::byte> bytes) {
      sent.emplace_back(to, Bytes(bytes.begin(), bytes.end()));
    };
  }
  static std::shared_ptr<ProcessGroup> Group(int tag) {
    return std::make_shared<ProcessGroup>(tag, std::vector<int>{2, 5, 7}, 1);
  }
  static Bytes Leave(int32_t tag, uint64_t exchanges) {
    ByteWriter out;
    out.Put(tag);
    out.Put(exchanges);
    return out.Take();
  }

  std::vector<std::pair<int, Bytes>> leaves, aborts;
  GroupBoard board{Into(leaves), Into(aborts)};
};

TEST_F(BoardTest, LeavingTellsTheOthersHowFarTheyCanGo) {
  const auto group = Group(3);
  board.Add(group);
  EXPECT_EQ(board.FreshTag(), 4);
  ASSERT_TRUE(board.OnLeave(7, Leave(3, 10)));
  EXPECT_TRUE(group->Usable(9));
  EXPECT_TRUE(group->Check(9).ok()) << "its part of that one was sent before it left";
  EXPECT_FALSE(group->Usable(10));
  EXPECT_EQ(group->Check(10).message(), "rank 7 left its group of 3 ranks");
  ASSERT_TRUE(board.OnLeave(2, Leave(3, 12)));
  EXPECT_EQ(group->Check(11).message(), "rank 7 left its group of 3 ranks");
  ASSERT_TRUE(board.OnLeave(2, Leave(3, 4)));
  EXPECT_EQ(group->Check(4).message(), "rank 2 left its group of 3 ranks");
  board.Leave(*group, 8);
  EXPECT_EQ(leaves, (std::vector<std::pair<int, Bytes>>{{2, Leave(3, 8)}, {7, Leave(3, 8)}}));
}

TEST_F(BoardTest, AbortReachesTheOtherRanksOfTheGroup) {
  const auto group = Group(0);
  board.Add(group);
  board.Abort(*group, Unavailable("stopping"));
  EXPECT_EQ(group->Check(0).message(), "stopping");
  ASSERT_EQ(aborts.size(), 2u);
  EXPECT_EQ(aborts[0].first, 2);
  EXPECT_EQ(aborts[1].first, 7);

  GroupBoard other(Into(leaves), Into(aborts));
  const auto theirs = Group(0);
  other.Add(theirs);
  ASSERT_TRUE(other.OnAbort(aborts[0].second));
  EXPECT_EQ(theirs->Check(0).message(), "stopping");
  EXPECT_EQ(theirs->Check(0).code(), StatusCode::kUnavailable);
}

// Another rank is through with making a group, uses it and fails, before this one knows the group.
TEST_F(BoardTest, WhatIsSaidOfAGroupInTheMakingIsKept) {
  const Bytes abort = EncodeFailure(6, InternalError("early"));
  ASSERT_TRUE(board.OnAbort(abort));
  ASSERT_TRUE(board.OnLeave(2, Leave(5, 1)));
  const auto five = Group(5), six = Group(6);
  board.Add(five);
  board.Add(six);
  EXPECT_TRUE(five->Check(0).ok());
  EXPECT_EQ(five->Check(1).message(), "rank 2 left its group of 3 ranks");
  EXPECT_EQ(six->Check(0).message(), "early");
}

// One that has gone here means nothing any more, and does not hit a later group.
TEST_F(BoardTest, WhatIsSaidOfAGroupThatIsGoneIsDropped) {
  auto group = Group(1);
  board.Add(group);
  board.Leave(*group, 0);
  group.reset();
  ASSERT_TRUE(board.OnAbort(EncodeFailure(1, InternalError("late"))));
  const auto next = Group(2);
  board.Add(next);
  EXPECT_TRUE(next->Check(0).ok());
}

TEST_F(BoardTest, NonsenseIsRefused) {
  Bytes bytes = EncodeFailure(1, InternalError("x"));
  int tag = 0;
  Status status;
  EXPECT_TRUE(DecodeFailure(bytes, &tag, &status));
  EXPECT_EQ(tag, 1);
  EXPECT_EQ(status.message(), "x");
  for (const size_t size : {size_t{0}, size_t{4}, bytes.size() - 1}) {
    EXPECT_FALSE(board.OnAbort(std::span(bytes).first(size)));
  }
  bytes[4] = std::byte{0};  // a failure that is ok
  EXPECT_FALSE(board.OnAbort(bytes));
  bytes[4] = std::byte{99};
  EXPECT_FALSE(board.OnAbort(bytes));
  EXPECT_FALSE(board.OnLeave(2, std::span(bytes).first(3)));
}

TEST_F(BoardTest, PulseSaysWhatTheProcessDoes) {
  EXPECT_EQ(board.pulse().activity, Activity::kIdle);
  std::atomic<uint64_t> work{40};
  board.BeginStep(&work);
  EXPECT_EQ(board.pulse().activity, Activity::kComputing);
  board.EnterExchange();
  EXPECT_EQ(board.pulse().activity, Activity::kWaiting);
  EXPECT_EQ(board.pulse().collectives, 0u);
  EXPECT_EQ(board.pulse().work, 40u);
  board.LeaveExchange();
  EXPECT_EQ(board.pulse().activity, Activity::kComputing);
  EXPECT_EQ(board.pulse().collectives, 1u);
  board.EndStep();
  EXPECT_EQ(board.pulse().activity, Activity::kIdle);
}

}  // namespace
}  // namespace perigee::comm
