#pragma once

#include <cstdint>

#include "cache/block_allocator.h"
#include "cache/slot_allocator.h"
#include "scheduler/sequence.h"

namespace perigee::scheduler {

// Hands blocks and state slots to sequences and takes them back: the only place that does. One thread.
class SequenceMemory {
 public:
  SequenceMemory(int64_t num_blocks, int64_t num_slots) : blocks_(num_blocks), slots_(num_slots) {}

  const cache::BlockAllocator& blocks() const { return blocks_; }
  const cache::SlotAllocator& slots() const { return slots_; }

  static int64_t BlocksFor(int64_t tokens);
  // Blocks that the sequence lacks to hold `tokens` tokens.
  static int64_t BlocksLacking(const Sequence& sequence, int64_t tokens);

  // Gives a sequence without memory a slot. One must be free.
  void TakeSlot(Sequence& sequence);
  // Extends the block table to cover `tokens` tokens. What it lacks must be free.
  void Grow(Sequence& sequence, int64_t tokens);
  // Gives back everything.
  void Release(Sequence& sequence);

 private:
  cache::BlockAllocator blocks_;
  cache::SlotAllocator slots_;
};

}  // namespace perigee::scheduler
