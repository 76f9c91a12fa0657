#include "comm/process_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "comm/transports.h"
#include "testing/multi_rank.h"

namespace perigee::comm {
namespace {

using Groups = std::vector<std::vector<int>>;

GridPosition At(int tp, int attn_cp, int ep, int rank) {
  return {.tp = tp, .attn_cp = attn_cp, .ep = ep, .rank = rank};
}

// The groups that the ranks say they are in, each once, in the order of first mention.
template <typename GroupOf>
Groups DistinctGroups(int tp, int attn_cp, GroupOf group_of) {
  Groups groups;
  for (int rank = 0; rank < tp; ++rank) {
    const std::vector<int> group = group_of(At(tp, attn_cp, 1, rank));
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

TEST(ProcessGrid, WorkedExampleOfEightRanks) {
  EXPECT_EQ(DistinctGroups(8, 4, CpGroup), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(DistinctGroups(8, 4, AttnTpGroup), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  std::vector<int> shares, ep_ranks, moe_tp_ranks, cp_ranks, attn_tp_ranks;
  for (int rank = 0; rank < 8; ++rank) {
    const GridPosition p = At(8, 4, 4, rank);
    EXPECT_EQ(p.attn_tp(), 2);
    shares.push_back(p.share());
    ep_ranks.push_back(p.ep_rank());
    moe_tp_ranks.push_back(p.moe_tp_rank());
    cp_ranks.push_back(p.cp_rank());
    attn_tp_ranks.push_back(p.attn_tp_rank());
  }
  EXPECT_EQ(cp_ranks, (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(attn_tp_ranks, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(shares, (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(ep_ranks, (std::vector<int>{0, 2, 0, 2, 1, 3, 1, 3}));
  EXPECT_EQ(moe_tp_ranks, (std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(ProcessGrid, ShareIsTheRankWithoutCpAndWithFullCp) {
  for (const int attn_cp : {1, 8}) {
    for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(At(8, attn_cp, 1, rank).share(), rank);
  }
}

// Shares are a bijection, and a CP group's shares are the attn_cp consecutive ones of one attn_tp shard.
void CheckShares(int tp, int attn_cp) {
  std::set<int> shares;
  for (int rank = 0; rank < tp; ++rank) {
    const GridPosition p = At(tp, attn_cp, 1, rank);
    EXPECT_EQ(p.cp_rank() * p.attn_tp() + p.attn_tp_rank(), rank);
    EXPECT_LT(p.cp_rank(), attn_cp);
    EXPECT_EQ(RankOfShare(tp, attn_cp, p.share()), rank);
    EXPECT_GE(p.share(), 0);
    EXPECT_LT(p.share(), tp);
    shares.insert(p.share());

    std::vector<int> group_shares, wanted;
    for (const int member : CpGroup(p)) {
      const GridPosition q = At(tp, attn_cp, 1, member);
      EXPECT_EQ(CpGroup(q), CpGroup(p));
      EXPECT_EQ(q.attn_tp_rank(), p.attn_tp_rank());
      group_shares.push_back(q.share());
    }
    for (int i = 0; i < attn_cp; ++i) wanted.push_back(p.attn_tp_rank() * attn_cp + i);
    EXPECT_EQ(group_shares, wanted);
    EXPECT_EQ(CpGroup(p)[static_cast<size_t>(p.cp_rank())], rank);

    for (const int member : AttnTpGroup(p)) EXPECT_EQ(At(tp, attn_cp, 1, member).cp_rank(), p.cp_rank());
    EXPECT_EQ(AttnTpGroup(p).size(), static_cast<size_t>(p.attn_tp()));
    EXPECT_EQ(AttnTpGroup(p)[static_cast<size_t>(p.attn_tp_rank())], rank);
  }
  EXPECT_EQ(shares.size(), static_cast<size_t>(tp));
}

// Going through shares in order, expert ranges come in order, each with its parts in order.
void CheckExpertRanges(int tp, int attn_cp, int ep) {
  int share = 0;
  for (int range = 0; range < ep; ++range) {
    for (int part = 0; part < tp / ep; ++part, ++share) {
      const GridPosition p = At(tp, attn_cp, ep, RankOfShare(tp, attn_cp, share));
      EXPECT_EQ(p.ep_rank(), range);
      EXPECT_EQ(p.moe_tp_rank(), part);
    }
  }
  EXPECT_EQ(share, tp);
}

TEST(ProcessGrid, EverySizeAndDivisor) {
  for (int tp = 1; tp <= 16; ++tp) {
    for (int attn_cp = 1; attn_cp <= tp + 1; ++attn_cp) {
      SCOPED_TRACE("tp " + std::to_string(tp) + ", C " + std::to_string(attn_cp));
      EXPECT_EQ(CheckGrid(tp, attn_cp, 1).ok(), tp % attn_cp == 0);
      EXPECT_EQ(CheckGrid(tp, 1, attn_cp).ok(), tp % attn_cp == 0);
      if (tp % attn_cp != 0) continue;
      CheckShares(tp, attn_cp);
      for (int ep = 1; ep <= tp; ++ep) {
        if (tp % ep == 0) CheckExpertRanges(tp, attn_cp, ep);
      }
    }
  }
}

TEST(ProcessGrid, ErrorsNameFlagValueAndWhatIsAccepted) {
  EXPECT_EQ(CheckGrid(0, 1, 1).message(), "--tp 0: accepted: 1 and more");
  EXPECT_EQ(CheckGrid(8, 3, 1).message(), "--attn-cp-size 3: must divide --tp 8; accepted: 1, 2, 4, 8");
  EXPECT_EQ(CheckGrid(4, 0, 1).message(), "--attn-cp-size 0: must divide --tp 4; accepted: 1, 2, 4");
  EXPECT_EQ(CheckGrid(4, 8, 1).message(), "--attn-cp-size 8: must divide --tp 4; accepted: 1, 2, 4");
  EXPECT_EQ(CheckGrid(6, 2, 4).message(), "--ep-size 4: must divide --tp 6; accepted: 1, 2, 3, 6");
  EXPECT_EQ(CheckGrid(6, 2, -1).message(), "--ep-size -1: must divide --tp 6; accepted: 1, 2, 3, 6");
}

// What a group's ranks hold, in the group's order, when each sends its world rank.
std::vector<int> WorldRanks(Communicator& group, int world_rank) {
  const std::vector<float> send = {static_cast<float>(world_rank)};
  const std::vector<int64_t> counts(static_cast<size_t>(group.size()), 1);
  std::vector<float> receive(counts.size());
  const Status status = group.AllGather(send, receive, counts);
  EXPECT_TRUE(status.ok()) << status.message();
  return {receive.begin(), receive.end()};
}

class MakeGrid : public testing::TestWithParam<test::WorldCase> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MakeGrid, testing::ValuesIn(test::AllWorlds()), test::WorldName);

TEST_P(MakeGrid, CommunicatorsJoinTheRanksOfTheGroups) {
  const int tp = GetParam().size;
  for (int attn_cp = 1; attn_cp <= tp; ++attn_cp) {
    if (tp % attn_cp != 0) continue;
    test::RunRanks(GetParam().transport, tp, [&](Communicator& world) {
      auto made = MakeProcessGrid(world, attn_cp, tp);
      ASSERT_TRUE(made.ok()) << made.status().message();
      const ProcessGrid& grid = *made;
      const GridPosition& p = grid.position;
      EXPECT_EQ(p.rank, world.rank());
      EXPECT_EQ(p.tp, tp);
      EXPECT_EQ(p.attn_cp, attn_cp);
      EXPECT_EQ(p.ep, tp);
      EXPECT_EQ(grid.tp->rank(), p.share());
      EXPECT_EQ(grid.cp->rank(), p.cp_rank());
      EXPECT_EQ(grid.attn_tp->rank(), p.attn_tp_rank());
      std::vector<int> by_share;
      for (int share = 0; share < tp; ++share) by_share.push_back(RankOfShare(tp, attn_cp, share));
      EXPECT_EQ(WorldRanks(*grid.tp, p.rank), by_share);
      EXPECT_EQ(WorldRanks(*grid.cp, p.rank), CpGroup(p));
      EXPECT_EQ(WorldRanks(*grid.attn_tp, p.rank), AttnTpGroup(p));
    });
  }
}

TEST_P(MakeGrid, RefusesWhatDoesNotDivide) {
  test::RunRanks(GetParam().transport, GetParam().size, [](Communicator& world) {
    EXPECT_EQ(MakeProcessGrid(world, world.size() + 1, 1).status().code(), StatusCode::kUsage);
    EXPECT_EQ(MakeProcessGrid(world, 1, 0).status().code(), StatusCode::kUsage);
  });
}

}  // namespace
}  // namespace perigee::comm
