#pragma once

#include <string>

#include "base/status.h"
#include "comm/process_ranks.h"
#include "engine/machine.h"

namespace perigee::engine {

// What processes must be of one mind about before the first of them reads weights.
struct StartAgreement {
  Machine machine;          // this process's; becomes what all of them plan with
  std::string fingerprint;  // of program, flags and model: must be the same everywhere
};

// Collective. `own`: whether this process may go on. Ok when all may, and then machine is the same
// everywhere: memory as if every rank had what the poorest one has, the compute threads of all, rank 0's
// random number. Otherwise the first rank's reason, the same on all.
Status AgreeOnStart(comm::ProcessRanks& ranks, const Status& own, StartAgreement* agreement);

}  // namespace perigee::engine
