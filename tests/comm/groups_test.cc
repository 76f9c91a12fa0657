#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/transports.h"
#include "testing/multi_rank.h"

namespace perigee::comm {
namespace {

using test::ExpectedSums;
using test::Offset;
using test::Random;
using test::RankData;
using test::RanksAreProcesses;
using test::Total;

class Groups : public testing::TestWithParam<test::WorldCase> {
 protected:
  void Run(const test::RankRun::Body& body) { test::RunRanks(GetParam().transport, GetParam().size, body); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Groups, testing::ValuesIn(test::AllWorlds()), test::WorldName);

std::unique_ptr<Communicator> MustSplit(Communicator& c, int color, int key) {
  auto group = c.Split(color, key);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return group.ok() ? std::move(group).value() : nullptr;
}

// One collective of a random kind with random counts, checked. `random` must be in the same state on all
// ranks of the group, and `round` the same.
void RandomRound(Communicator& c, Random& random, uint64_t round) {
  const int rank = c.rank(), size = c.size();
  std::vector<int64_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back(random.Below(3) == 0 ? 0 : random.Below(40));
  const int64_t own = counts[static_cast<size_t>(rank)], total = Total(counts);
  const int root = static_cast<int>(random.Below(size));
  std::vector<float> expected, receive;
  Status status;
  const auto kind = static_cast<Collective>(random.Below(kNumCollectives));
  switch (kind) {
    case Collective::kAllGather: {
      for (int r = 0; r < size; ++r) {
        const std::vector<float> part = RankData(round, r, counts[static_cast<size_t>(r)]);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      receive.resize(expected.size());
      status = c.AllGather(RankData(round, rank, own), receive, counts);
      break;
    }
    case Collective::kReduceScatter: {
      const std::vector<float> sums = ExpectedSums(round, size, total);
      const auto begin = sums.begin() + Offset(counts, rank);
      expected.assign(begin, begin + own);
      receive.resize(expected.size());
      status = c.ReduceScatter(RankData(round, rank, total), receive, counts);
      break;
    }
    case Collective::kAllReduce:
      expected = ExpectedSums(round, size, total);
      receive = RankData(round, rank, total);
      status = c.AllReduce(receive);
      break;
    case Collective::kAllToAll: {
      // Rank r gets counts[r] elements of everybody.
      const std::vector<int64_t> receive_counts(static_cast<size_t>(size), own);
      for (int r = 0; r < size; ++r) {
        const std::vector<float> data = RankData(round, r, total);
        const auto begin = data.begin() + Offset(counts, rank);
        expected.insert(expected.end(), begin, begin + own);
      }
      receive.resize(expected.size());
      status = c.AllToAll(RankData(round, rank, total), counts, receive, receive_counts);
      break;
    }
    case Collective::kBroadcast:
      expected = RankData(round, root, total);
      receive = RankData(round, rank, total);
      status = c.Broadcast(receive, root);
      break;
  }
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(receive, expected) << CollectiveName(kind) << " of round " << round;
}

TEST_P(Groups, ManyRoundsOfRandomKinds) {
  Run([](Communicator& c) {
    Random random(1);
    for (uint64_t round = 0; round < 400 && !testing::Test::HasFailure(); ++round) {
      RandomRound(c, random, round);
    }
  });
}

TEST_P(Groups, SplitTakesColorsAndTheOrderOfKeys) {
  Run([](Communicator& world) {
    const int rank = world.rank(), size = world.size();
    const int color = rank % 3 * 100 - 100;
    const auto group = MustSplit(world, color, -rank);  // keys turn the order round
    std::vector<float> members;
    for (int r = size - 1; r >= 0; --r) {
      if (r % 3 == rank % 3) members.push_back(static_cast<float>(r));
    }
    ASSERT_EQ(group->size(), static_cast<int>(members.size()));
    EXPECT_EQ(static_cast<int>(members[static_cast<size_t>(group->rank())]), rank);
    std::vector<float> gathered(members.size());
    const std::vector<float> send = {static_cast<float>(rank)};
    const std::vector<int64_t> counts(members.size(), 1);
    EXPECT_TRUE(group->AllGather(send, gathered, counts).ok());
    EXPECT_EQ(gathered, members);
    EXPECT_EQ(group->traffic().TotalElements(), members.size() - 1);
    EXPECT_EQ(world.traffic().TotalElements(), 0u);
  });
}

// The world and two ways to cut it, the second cut again, all at work in one random order.
TEST_P(Groups, InterleavedAndNestedGroups) {
  Run([](Communicator& world) {
    const int rank = world.rank(), size = world.size();
    const auto parity = MustSplit(world, rank % 2, rank);
    const auto halves = MustSplit(world, rank * 2 / size, size - rank);
    const auto quarters = MustSplit(*halves, halves->rank() * 2 / halves->size(), halves->rank());
    Random order(2);  // the same for all
    std::vector<std::pair<Communicator*, Random>> groups = {{&world, Random(3)},
                                                            {parity.get(), Random(4)},
                                                            {halves.get(), Random(5)},
                                                            {quarters.get(), Random(6)}};
    for (uint64_t round = 0; round < 200 && !testing::Test::HasFailure(); ++round) {
      auto& [group, random] = groups[static_cast<size_t>(order.Below(4))];
      RandomRound(*group, random, round);
    }
  });
}

// Groups that share no rank do not wait for each other, and a world may go before the groups split from it.
TEST_P(Groups, GroupsOutliveTheirWorldAtTheirOwnPace) {
  std::vector<std::unique_ptr<Communicator>> groups(static_cast<size_t>(GetParam().size));
  Run([&](Communicator& world) {
    groups[static_cast<size_t>(world.rank())] = MustSplit(world, world.rank() % 2, world.rank());
  });
  const auto run_color = [&](int color) {
    std::vector<std::thread> threads;
    for (size_t r = static_cast<size_t>(color); r < groups.size(); r += 2) {
      if (groups[r] == nullptr && RanksAreProcesses(GetParam())) continue;
      threads.emplace_back([&, r] {
        Random random(7);
        for (uint64_t round = 0; round < 50; ++round) RandomRound(*groups[r], random, round);
      });
    }
    for (std::thread& t : threads) t.join();
  };
  run_color(1);
  run_color(0);
}

}  // namespace
}  // namespace perigee::comm
