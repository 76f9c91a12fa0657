#include "scheduler/sequence_memory.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/math.h"
#include "cache/paged_kv_cache.h"

namespace perigee::scheduler {

int64_t SequenceMemory::BlocksFor(int64_t tokens) {
  return CeilDiv(tokens, cache::kBlockTokens);
}

int64_t SequenceMemory::BlocksLacking(const Sequence& sequence, int64_t tokens) {
  return std::max<int64_t>(BlocksFor(tokens) - static_cast<int64_t>(sequence.blocks.size()), 0);
}

void SequenceMemory::TakeSlot(Sequence& sequence) {
  PERIGEE_CHECK(sequence.slot < 0 && sequence.blocks.empty());
  const std::optional<int32_t> slot = slots_.Allocate();
  PERIGEE_CHECK(slot.has_value());
  sequence.slot = *slot;
}

void SequenceMemory::Grow(Sequence& sequence, int64_t tokens) {
  for (int64_t lacking = BlocksLacking(sequence, tokens); lacking > 0; --lacking) {
    const std::optional<int32_t> block = blocks_.Allocate();
    PERIGEE_CHECK(block.has_value());
    sequence.blocks.push_back(*block);
  }
}

void SequenceMemory::Release(Sequence& sequence) {
  // Last block first: the next owner then gets them in ascending order again.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block)
    blocks_.Release(*block);
  sequence.blocks.clear();
  if (sequence.slot >= 0) slots_.Release(sequence.slot);
  sequence.slot = -1;
}

}  // namespace perigee::scheduler
