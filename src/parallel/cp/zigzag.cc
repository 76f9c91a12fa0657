#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel/cp/cp_strategy.h"

namespace perigee::parallel {
namespace {

// First row of block b when `rows` rows are cut into `blocks` blocks.
int64_t BlockBegin(int64_t b, int64_t rows, int64_t blocks) {
  return b * (rows / blocks) + std::min(b, rows % blocks);
}

void AddBlock(int32_t span, int64_t block, int64_t rows, int64_t blocks, std::vector<Segment>& to) {
  const int64_t begin = BlockBegin(block, rows, blocks);
  to.push_back({span, begin, BlockBegin(block + 1, rows, blocks) - begin});
}

}  // namespace

CpPlan Zigzag(std::span<const batch::SeqSpan> spans, int cp_size) {
  const int64_t blocks = 2 * static_cast<int64_t>(cp_size);
  CpPlan plan;
  plan.ranks.resize(static_cast<size_t>(cp_size));
  std::vector<int32_t> split;
  std::vector<int32_t> whole;
  for (size_t i = 0; i < spans.size(); ++i) {
    (spans[i].q_len < blocks ? whole : split).push_back(static_cast<int32_t>(i));
  }
  for (int64_t r = 0; r < cp_size; ++r) {
    std::vector<Segment>& own = plan.ranks[static_cast<size_t>(r)];
    for (const int64_t block : {r, blocks - 1 - r}) {
      for (const int32_t i : split) AddBlock(i, block, spans[static_cast<size_t>(i)].q_len, blocks, own);
    }
  }
  AssignWholeSpans(spans, whole, plan);
  return plan;
}

CpPlan Contiguous(std::span<const batch::SeqSpan> spans, int cp_size) {
  CpPlan plan;
  plan.ranks.resize(static_cast<size_t>(cp_size));
  std::vector<int32_t> whole;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].q_len < cp_size) {
      whole.push_back(static_cast<int32_t>(i));
      continue;
    }
    for (int64_t r = 0; r < cp_size; ++r) {
      AddBlock(static_cast<int32_t>(i), r, spans[i].q_len, cp_size, plan.ranks[static_cast<size_t>(r)]);
    }
  }
  AssignWholeSpans(spans, whole, plan);
  return plan;
}

}  // namespace perigee::parallel
