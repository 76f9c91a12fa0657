#pragma once

#include "base/status.h"
#include "engine/parallel_options.h"
#include "parallel/planner.h"

namespace perigee::engine {

// What the planner reckons with when nothing is said: threads of one process on the CPU.
parallel::Rates DefaultRates();

// The defaults, over them the file of --plan-profile, over that the flags. The file is a JSON object of
// numbers, each of which may be missing:
//   link_gbps    billions of bits that a rank sends in a second
//   latency_us   microseconds of a collective besides
//   tflops       10^12 operations of a rank in a second; a multiply and an add are two
//   row_bytes    of an element of a row
//   tp, cp, attn_tp  objects with link_gbps and latency_us of one group's link: all ranks, a CP group, the
//                ranks that hold the same rows
// Errors name file, key and what is accepted. The flags hold numbers that make sense.
StatusOr<parallel::Rates> ReadRates(const ParallelOptions& options);

}  // namespace perigee::engine
