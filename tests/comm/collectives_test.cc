#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/transports.h"
#include "testing/multi_rank.h"

namespace perigee::comm {
namespace {

using test::ExpectedSums;
using test::Offset;
using test::RankData;
using test::RunRanks;
using test::Total;

class Collectives : public testing::TestWithParam<test::WorldCase> {
 protected:
  void Run(const test::RankRun::Body& body) { RunRanks(GetParam().transport, GetParam().size, body); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Collectives, testing::ValuesIn(test::AllWorlds()), test::WorldName);

using Sums = Collectives;
INSTANTIATE_TEST_SUITE_P(Worlds, Sums, testing::ValuesIn(test::AllWorlds(2)), test::WorldName);

std::vector<uint32_t> Bits(std::span<const float> x) {
  std::vector<uint32_t> out;
  for (const float v : x) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

#define EXPECT_OK(expression)                                     \
  do {                                                            \
    const Status status_of_call = (expression);                   \
    EXPECT_TRUE(status_of_call.ok()) << status_of_call.message(); \
  } while (false)

// Ragged, with zeros, all zero, everything on one rank, and longer than any block that sums are cut into.
std::vector<std::vector<int64_t>> CountPatterns(int size) {
  std::vector<std::vector<int64_t>> patterns;
  const auto add = [&](auto count_of_rank) {
    std::vector<int64_t> counts;
    for (int r = 0; r < size; ++r) counts.push_back(count_of_rank(r));
    patterns.push_back(counts);
  };
  add([](int) { return 0; });
  add([](int) { return 1; });
  add([](int r) { return (r * 7 + 3) % 5; });
  add([](int r) { return r % 2 == 0 ? 0 : 33; });
  add([&](int r) { return r == size - 1 ? 100 : 0; });
  add([](int r) { return 1000 + 517 * r; });
  return patterns;
}

TEST_P(Collectives, AllGatherRaggedParts) {
  Run([](Communicator& c) {
    uint64_t round = 0;
    for (const std::vector<int64_t>& counts : CountPatterns(c.size())) {
      ++round;
      const std::vector<float> send = RankData(round, c.rank(), counts[static_cast<size_t>(c.rank())]);
      std::vector<float> expected;
      for (int r = 0; r < c.size(); ++r) {
        const std::vector<float> part = RankData(round, r, counts[static_cast<size_t>(r)]);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      std::vector<float> receive(expected.size(), -1);
      EXPECT_OK(c.AllGather(send, receive, counts));
      EXPECT_EQ(receive, expected) << "pattern " << round;
    }
  });
}

TEST_P(Collectives, ReduceScatterRaggedParts) {
  Run([](Communicator& c) {
    uint64_t round = 0;
    for (const std::vector<int64_t>& counts : CountPatterns(c.size())) {
      ++round;
      const int64_t total = Total(counts);
      const std::vector<float> send = RankData(round, c.rank(), total);
      const std::vector<float> sums = ExpectedSums(round, c.size(), total);
      const int64_t begin = Offset(counts, c.rank());
      const std::vector<float> expected(sums.begin() + begin,
                                        sums.begin() + begin + counts[static_cast<size_t>(c.rank())]);
      std::vector<float> receive(expected.size(), -1);
      EXPECT_OK(c.ReduceScatter(send, receive, counts));
      EXPECT_EQ(Bits(receive), Bits(expected)) << "pattern " << round;
      EXPECT_EQ(send, RankData(round, c.rank(), total)) << "the send buffer has changed";
    }
  });
}

TEST_P(Collectives, AllReduceFollowsTheTreeAtEveryLength) {
  Run([](Communicator& c) {
    for (const int64_t n : {0, 1, 2, 3, 5, 7, 8, 9, 64, 1023, 1024, 1025, 6144, 20001}) {
      std::vector<float> data = RankData(77, c.rank(), n);
      EXPECT_OK(c.AllReduce(data));
      EXPECT_EQ(Bits(data), Bits(ExpectedSums(77, c.size(), n))) << n << " elements";
    }
  });
}

// The values above can tell the tree from the orders that an implementation might take in its place.
TEST(TreeOrder, TestValuesTellOtherOrdersApart) {
  constexpr int64_t kElements = 64;
  for (int size = 3; size <= 8; ++size) {
    const std::vector<uint32_t> expected = Bits(ExpectedSums(77, size, kElements));
    std::vector<float> ascending(kElements), descending(kElements), halves(kElements);
    const auto sum_range = [&](auto& self, int begin, int end, size_t i) -> float {
      if (end - begin == 1) return RankData(77, begin, kElements)[i];
      const int middle = begin + (end - begin) / 2;
      return self(self, begin, middle, i) + self(self, middle, end, i);
    };
    for (size_t i = 0; i < kElements; ++i) {
      for (int r = 0; r < size; ++r) ascending[i] += RankData(77, r, kElements)[i];
      for (int r = size - 1; r >= 0; --r) descending[i] += RankData(77, r, kElements)[i];
      halves[i] = sum_range(sum_range, 0, size, i);
    }
    EXPECT_NE(Bits(descending), expected) << size << " ranks";
    if (size > 3) {
      EXPECT_NE(Bits(ascending), expected) << size << " ranks";
    }
    if (!std::has_single_bit(static_cast<unsigned>(size))) {
      EXPECT_NE(Bits(halves), expected) << size << " ranks";
    }
  }
}

// Kernels flush denormal numbers to zero; a sum over ranks must not differ from the same sum inside one.
TEST_P(Sums, DenormalSumsAreZero) {
  Run([](Communicator& c) {
    std::vector<float> data(5, 0.0f);
    if (c.rank() == 0) data.assign(5, 0x1.8p-126f);
    if (c.rank() == 1) data.assign(5, -0x1p-126f);
    EXPECT_OK(c.AllReduce(data));
    EXPECT_EQ(Bits(data), Bits(std::vector<float>(5, 0.0f)));
  });
}

TEST_P(Collectives, AllToAllRaggedParts) {
  Run([](Communicator& c) {
    for (int pattern = 0; pattern < 4; ++pattern) {
      const auto count = [&](int from, int to) -> int64_t {
        if (pattern == 0) return 0;
        if (pattern == 1) return from == to ? 4 : 0;
        if (pattern == 2) return (from * 3 + to * 5) % 4;
        return (from * 3 + to * 5) % 4 * 700;
      };
      const auto part = [&](int from, int to) {
        return RankData(static_cast<uint64_t>(100 * pattern + 10 * from + to), from, count(from, to));
      };
      std::vector<int64_t> send_counts, receive_counts;
      std::vector<float> send, expected;
      for (int r = 0; r < c.size(); ++r) {
        send_counts.push_back(count(c.rank(), r));
        receive_counts.push_back(count(r, c.rank()));
        const std::vector<float> to = part(c.rank(), r), from = part(r, c.rank());
        send.insert(send.end(), to.begin(), to.end());
        expected.insert(expected.end(), from.begin(), from.end());
      }
      std::vector<float> receive(expected.size(), -1);
      EXPECT_OK(c.AllToAll(send, send_counts, receive, receive_counts));
      EXPECT_EQ(receive, expected) << "pattern " << pattern;
    }
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  Run([](Communicator& c) {
    for (int root = 0; root < c.size(); ++root) {
      for (const int64_t n : {0, 1, 5000}) {
        std::vector<float> data = RankData(9, c.rank(), n);
        EXPECT_OK(c.Broadcast(data, root));
        EXPECT_EQ(data, RankData(9, root, n)) << "root " << root;
      }
    }
  });
}

// Elements sent, written out by hand for every kind: rank r has r + 1 rows of 10, sums are over 23 elements.
TEST_P(Collectives, TrafficCountsElementsSentToOthers) {
  Run([](Communicator& c) {
    const auto size = static_cast<uint64_t>(c.size());
    const auto rank = static_cast<uint64_t>(c.rank());
    std::vector<int64_t> counts;
    for (int r = 0; r < c.size(); ++r) counts.push_back(10 * (r + 1));
    const auto total = static_cast<uint64_t>(Total(counts));
    std::vector<float> mine(10 * (rank + 1)), all(total), data(23);
    std::vector<int64_t> to_each(size, 3);
    std::vector<float> send(3 * size), receive(3 * size);

    const Traffic start = c.traffic();
    EXPECT_EQ(start.TotalElements(), 0u);
    EXPECT_OK(c.AllGather(mine, all, counts));
    EXPECT_OK(c.ReduceScatter(all, mine, counts));
    EXPECT_OK(c.AllToAll(send, to_each, receive, to_each));
    const Traffic middle = c.traffic();
    EXPECT_OK(c.AllReduce(data));
    EXPECT_OK(c.AllReduce(data));
    EXPECT_OK(c.Broadcast(data, c.size() - 1));

    const uint64_t own = 23 * (rank + 1) / size - 23 * rank / size;
    const std::array<uint64_t, kNumCollectives> expected = {
        10 * (rank + 1) * (size - 1),             // to every other rank
        total - 10 * (rank + 1),                  // every part but the own
        2 * ((23 - own) + own * (size - 1)),      // both steps, twice
        3 * (size - 1),                           //
        rank == size - 1 ? 23 * (size - 1) : 0};  // the root alone sends
    EXPECT_EQ(c.traffic().elements, expected);
    EXPECT_EQ(c.traffic().calls, (std::array<uint64_t, kNumCollectives>{1, 1, 2, 1, 1}));
    const Traffic later = c.traffic() - middle;
    EXPECT_EQ(later.elements, (std::array<uint64_t, kNumCollectives>{0, 0, expected[2], 0, expected[4]}));
    EXPECT_EQ(later.calls, (std::array<uint64_t, kNumCollectives>{0, 0, 2, 0, 1}));
    EXPECT_EQ(later.TotalElements(), expected[2] + expected[4]);
    if (size == 1) {
      EXPECT_EQ(c.traffic().TotalElements(), 0u);
    }
  });
}

TEST(CollectiveName, NamesEveryKind) {
  EXPECT_EQ(CollectiveName(Collective::kAllGather), "AllGather");
  EXPECT_EQ(CollectiveName(Collective::kReduceScatter), "ReduceScatter");
  EXPECT_EQ(CollectiveName(Collective::kAllReduce), "AllReduce");
  EXPECT_EQ(CollectiveName(Collective::kAllToAll), "AllToAll");
  EXPECT_EQ(CollectiveName(Collective::kBroadcast), "Broadcast");
}

}  // namespace
}  // namespace perigee::comm
