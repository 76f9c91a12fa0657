#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "batch/batch_plan.h"

namespace perigee::batch {

// What a rank has, which no plan may exceed.
struct PlanLimits {
  int64_t vocab_size = 0;
  int64_t num_blocks = 0;
  int64_t num_slots = 0;
  int64_t block_tokens = 64;
  int64_t max_rows = int64_t{1} << 21;  // of a step
};

// A plan as bytes for the ranks that are other processes, and back. The form has a version: processes of
// another one refuse it. Decoding checks everything that running the plan relies on (MakeForwardBatch's
// checks, and that ids, blocks and slots exist), and takes memory in proportion to the bytes only. The error
// says which span and which value.
std::vector<std::byte> EncodePlan(const BatchPlan& plan);
StatusOr<BatchPlan> DecodePlan(std::span<const std::byte> bytes, const PlanLimits& limits);

}  // namespace perigee::batch
