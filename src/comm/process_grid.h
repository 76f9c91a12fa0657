#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace perigee::comm {

// Where a rank stands among the tp ranks of a model replica (pure arithmetic).
//   rank = cp_rank * attn_tp + attn_tp_rank,  attn_tp = tp / attn_cp
//   share = attn_tp_rank * attn_cp + cp_rank: the index by which everything is cut that is cut over all ranks
// The attn_cp shares of a CP group make up exactly one attn_tp shard.
struct GridPosition {
  int tp = 1;
  int attn_cp = 1;
  int ep = 1;
  int rank = 0;

  int attn_tp() const { return tp / attn_cp; }
  int cp_rank() const { return rank / attn_tp(); }
  int attn_tp_rank() const { return rank % attn_tp(); }
  int share() const { return attn_tp_rank() * attn_cp + cp_rank(); }
  // Experts are cut into ep ranges of shares; within a range their width over the tp / ep ranks that share
  // it.
  int ep_rank() const { return share() / (tp / ep); }
  int moe_tp_rank() const { return share() % (tp / ep); }
};

// tp, attn_cp, ep >= 1, tp % attn_cp == 0, tp % ep == 0, 0 <= rank < tp; the error names flag, value and what
// is accepted.
Status CheckGrid(int tp, int attn_cp, int ep);
// The rank that holds a share.
int RankOfShare(int tp, int attn_cp, int share);
// Ranks with equal attn_tp_rank, in cp_rank order; and ranks with equal cp_rank, in attn_tp_rank order.
std::vector<int> CpGroup(const GridPosition& p);
std::vector<int> AttnTpGroup(const GridPosition& p);

// The groups that a rank talks in.
struct ProcessGrid {
  GridPosition position;
  std::unique_ptr<Communicator> tp;  // all ranks, in share order: sums over shares follow the tree of parts
  std::unique_ptr<Communicator> cp;  // the CP group, in cp_rank order
  std::unique_ptr<Communicator> attn_tp;  // ranks that hold the same rows, in attn_tp_rank order
};

// Splits `world` (rank order) into the groups. Collective over the world, which stays the caller's.
StatusOr<ProcessGrid> MakeProcessGrid(Communicator& world, int attn_cp, int ep);

}  // namespace perigee::comm
