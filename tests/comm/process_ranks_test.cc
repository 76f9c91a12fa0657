// What processes under mpirun do besides collectives. Every process runs this, in step with the others.
#include "comm/process_ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/mpi_ranks.h"

namespace perigee::comm {
namespace {

using test::ProcessRanksOfTest;

std::vector<std::byte> BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(ProcessRanks, KnowTheirPlace) {
  ProcessRanks& ranks = ProcessRanksOfTest();
  EXPECT_EQ(ranks.size(), 4);
  EXPECT_EQ(ranks.ranks_on_host(), 4);
  EXPECT_EQ(ranks.world().rank(), ranks.rank());
  EXPECT_EQ(ranks.world().size(), ranks.size());
}

TEST(ProcessRanks, AllGatherBringsEverybodysBytesInOrder) {
  ProcessRanks& ranks = ProcessRanksOfTest();
  for (int round = 0; round < 50; ++round) {
    const auto all =
        ranks.AllGather(BytesOf(std::string(static_cast<size_t>(ranks.rank()), 'a') + std::to_string(round)));
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(all->size(), 4u);
    for (size_t r = 0; r < 4; ++r) EXPECT_EQ((*all)[r], BytesOf(std::string(r, 'a') + std::to_string(round)));
  }
}

TEST(ProcessRanks, RankZeroTellsInOrder) {
  ProcessRanks& ranks = ProcessRanksOfTest();
  for (int i = 0; i < 200; ++i) {
    const auto message = BytesOf(std::string(static_cast<size_t>(i) * 50, 'm'));
    if (ranks.rank() == 0) {
      ranks.Tell(message);
    } else {
      const auto heard = ranks.Receive();
      ASSERT_TRUE(heard.has_value());
      EXPECT_EQ(*heard, message);
    }
  }
}

}  // namespace
}  // namespace perigee::comm
