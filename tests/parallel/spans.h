#pragma once

#include <cstdint>
#include <vector>

#include "batch/seq_span.h"

namespace perigee::test {

// New rows of one sequence and what it holds already.
struct SpanShape {
  int64_t prefix = 0;
  int64_t len = 0;
};

// The spans of a step, one after another.
inline std::vector<batch::SeqSpan> MakeSpans(const std::vector<SpanShape>& shapes) {
  std::vector<batch::SeqSpan> spans;
  int64_t row = 0;
  for (const SpanShape& shape : shapes) {
    spans.push_back({.seq = static_cast<int32_t>(spans.size()),
                     .q_begin = row,
                     .q_len = shape.len,
                     .kv_len = shape.prefix + shape.len});
    row += shape.len;
  }
  return spans;
}

}  // namespace perigee::test
