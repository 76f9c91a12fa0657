#pragma once

namespace perigee::comm {
class Communicator;
struct ProcessGrid;
}  // namespace perigee::comm

namespace perigee::parallel {

// The groups that a rank was built with. Groups of one rank may be null: nothing is ever sent in them.
struct ParallelContext {
  int tp = 1;
  int attn_cp = 1;
  int rank = 0;
  int cp_rank = 0;
  int share = 0;
  comm::Communicator* tp_group = nullptr;       // all ranks, in share order
  comm::Communicator* cp_group = nullptr;       // in cp_rank order
  comm::Communicator* attn_tp_group = nullptr;  // in attn_tp_rank order
};

// Of a rank's groups, which outlive the context.
ParallelContext ContextOf(const comm::ProcessGrid& grid);

}  // namespace perigee::parallel
