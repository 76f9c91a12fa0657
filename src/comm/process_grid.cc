#include "comm/process_grid.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/strings.h"

namespace perigee::comm {
namespace {

Status CheckDivisor(std::string_view flag, int value, int tp) {
  if (value >= 1 && tp % value == 0) return Status::Ok();
  std::string accepted;
  for (int d = 1; d <= tp; ++d) {
    if (tp % d == 0) accepted += StrCat(accepted.empty() ? "" : ", ", d);
  }
  return UsageError(StrCat(flag, " ", value, ": must divide --tp ", tp, "; accepted: ", accepted));
}

}  // namespace

Status CheckGrid(int tp, int attn_cp, int ep) {
  if (tp < 1) return UsageError(StrCat("--tp ", tp, ": accepted: 1 and more"));
  PERIGEE_RETURN_IF_ERROR(CheckDivisor("--attn-cp-size", attn_cp, tp));
  return CheckDivisor("--ep-size", ep, tp);
}

int RankOfShare(int tp, int attn_cp, int share) {
  PERIGEE_CHECK(share >= 0 && share < tp && tp % attn_cp == 0);
  const int attn_tp_rank = share / attn_cp;
  const int cp_rank = share % attn_cp;
  return cp_rank * (tp / attn_cp) + attn_tp_rank;
}

std::vector<int> CpGroup(const GridPosition& p) {
  std::vector<int> ranks;
  for (int cp_rank = 0; cp_rank < p.attn_cp; ++cp_rank) {
    ranks.push_back(cp_rank * p.attn_tp() + p.attn_tp_rank());
  }
  return ranks;
}

std::vector<int> AttnTpGroup(const GridPosition& p) {
  std::vector<int> ranks;
  for (int attn_tp_rank = 0; attn_tp_rank < p.attn_tp(); ++attn_tp_rank) {
    ranks.push_back(p.cp_rank() * p.attn_tp() + attn_tp_rank);
  }
  return ranks;
}

StatusOr<ProcessGrid> MakeProcessGrid(Communicator& world, int attn_cp, int ep) {
  PERIGEE_RETURN_IF_ERROR(CheckGrid(world.size(), attn_cp, ep));
  ProcessGrid grid;
  grid.position = {.tp = world.size(), .attn_cp = attn_cp, .ep = ep, .rank = world.rank()};
  const GridPosition& p = grid.position;
  PERIGEE_ASSIGN_OR_RETURN(grid.tp, world.Split(0, p.share()));
  PERIGEE_ASSIGN_OR_RETURN(grid.cp, world.Split(p.attn_tp_rank(), p.cp_rank()));
  PERIGEE_ASSIGN_OR_RETURN(grid.attn_tp, world.Split(p.cp_rank(), p.attn_tp_rank()));
  return grid;
}

}  // namespace perigee::comm
