#include "parallel/parallel_context.h"

#include "comm/process_grid.h"

namespace perigee::parallel {

ParallelContext ContextOf(const comm::ProcessGrid& grid) {
  const comm::GridPosition& p = grid.position;
  return {.tp = p.tp,
          .attn_cp = p.attn_cp,
          .rank = p.rank,
          .cp_rank = p.cp_rank(),
          .share = p.share(),
          .tp_group = grid.tp.get(),
          .cp_group = grid.cp.get(),
          .attn_tp_group = grid.attn_tp.get()};
}

}  // namespace perigee::parallel
