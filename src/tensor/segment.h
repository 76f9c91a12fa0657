#pragma once

#include <cstdint>
#include <span>

#include "tensor/step_span.h"

namespace perigee {

// One sequence's run of rows in a step and where its memory lies, as kernels read it. A sequence may have
// several (the rows of a rank, chosen rows).
struct Segment {
  int64_t q_begin = 0;  // first row
  int64_t q_len = 0;
  int64_t kv_len = 0;       // row i sees keys [0, kv_len - q_len + i] (0-based); only attention reads it
  int32_t slot = 0;         // of its recurrent and conv states
  int32_t first_block = 0;  // place of its block table in the step's tables

  std::span<const int32_t> BlockTable(const StepSpan<int32_t>& tables, int64_t block_tokens) const {
    const auto count = static_cast<size_t>((kv_len + block_tokens - 1) / block_tokens);
    return tables.host.subspan(static_cast<size_t>(first_block), count);
  }
};

// Segments with the block tables that they point into.
struct PagedSegments {
  StepSpan<Segment> list;
  StepSpan<int32_t> block_tables;
};

}  // namespace perigee
