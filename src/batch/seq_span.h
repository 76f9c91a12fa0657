#pragma once

#include <cstdint>

namespace perigee::batch {

enum class Phase : uint8_t { kPrefill, kDecode };

// One sequence's new rows in a step. The span's rows are [q_begin, q_begin + q_len) of the step's rows; after
// the step the sequence holds kv_len tokens, of which the last q_len are these rows. Row i of the span
// (0-based) sees the prefix() + i + 1 first keys.
struct SeqSpan {
  int32_t seq = 0;  // index into the step's per-sequence arrays
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;

  int64_t prefix() const { return kv_len - q_len; }
};

// A KDA state that is wanted besides the last: of sequence `seq` after its first `tokens` tokens, which lie
// within the step's new rows, at a multiple of 64. It is written to the state slot `slot`.
struct StateSnapshot {
  int32_t seq = 0;
  int64_t tokens = 0;
  int32_t slot = 0;
};

}  // namespace perigee::batch
