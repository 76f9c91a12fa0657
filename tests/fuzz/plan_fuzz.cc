#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "batch/forward_batch.h"
#include "batch/plan_bytes.h"

// What decodes can be run, and is the plan that its own bytes say.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace perigee::batch;
  constexpr PlanLimits kLimits{
      .vocab_size = 300, .num_blocks = 20, .num_slots = 4, .block_tokens = 4, .max_rows = 100};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto plan = DecodePlan(bytes, kLimits);
  if (!plan.ok()) {
    PERIGEE_CHECK(plan.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const ForwardBatch batch = MakeForwardBatch(*plan);
  PERIGEE_CHECK(batch.NumRows() > 0 && batch.NumRows() <= kLimits.max_rows);
  for (const int64_t row : batch.wanted_rows) PERIGEE_CHECK(row >= 0 && row < batch.NumRows());
  const auto again = DecodePlan(EncodePlan(*plan), kLimits);
  PERIGEE_CHECK(again.ok() && std::ranges::equal(EncodePlan(*again), EncodePlan(*plan)));
  return 0;
}
