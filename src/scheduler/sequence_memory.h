#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/batch_plan.h"
#include "cache/block_allocator.h"
#include "cache/prefix_index.h"
#include "cache/slot_allocator.h"
#include "scheduler/sequence.h"

namespace perigee::scheduler {

// Hands blocks, state slots and snapshots to sequences and takes them back: the only place that does. What
// sequences have computed goes to the prefix index and is found again there; without snapshots there is no
// reuse and the index stays empty. One thread.
class SequenceMemory {
 public:
  using Match = cache::PrefixIndex::Match;

  // States of running sequences are in slots [0, num_slots), snapshots in the `num_snapshots` after them.
  // `checkpoint_interval`: see SnapshotPoints.
  SequenceMemory(int64_t num_blocks, int64_t num_slots, int64_t num_snapshots, int64_t checkpoint_interval);

  const cache::BlockAllocator& blocks() const { return blocks_; }
  const cache::SlotAllocator& slots() const { return slots_; }
  const cache::PrefixIndex& index() const { return index_; }
  bool caching() const { return index_.num_snapshots() > 0; }

  static int64_t BlocksFor(int64_t tokens);
  // Blocks that the sequence lacks to hold `tokens` tokens.
  static int64_t BlocksLacking(const Sequence& sequence, int64_t tokens);
  // Blocks that are free, or would be if the index gave up all that nobody holds.
  int64_t Available() const { return blocks_.num_free() + index_.cached_blocks(); }

  // Whether the sequence may ever find anything.
  bool CanReuse(const Sequence& sequence) const;
  // What the sequence could begin with, at most `limit` tokens.
  Match Find(const Sequence& sequence, int64_t limit) const;

  // The place after the known blocks where no state was kept, or 0.
  static int64_t BranchPoint(const Match& match) { return match.known > match.tokens ? match.known : 0; }

  // Gives a sequence without memory a slot. One must be free.
  void TakeSlot(Sequence& sequence);
  // The sequence holds what was just found; it has a slot, which is to be filled from there.
  void Hold(Sequence& sequence, const Match& match);
  // Takes everything back but the slot.
  void LetGo(Sequence& sequence);

  // Makes blocks of the index free until `lacking` are. False: there are no more to free.
  bool Free(int64_t lacking);
  // Frees blocks that only stand beside those of this sequence. False: there are none.
  bool FreeDuplicates(const Sequence& sequence);
  // Extends the block table to cover `tokens` tokens. What it lacks must be free.
  void Grow(Sequence& sequence, int64_t tokens);

  // Where the sequence's next piece of the prompt, from `computed` on, has to end for a snapshot.
  int64_t NextCut(const Sequence& sequence, int64_t computed, int64_t branch_point) const;
  // The next `rows` rows as a span; with a snapshot after it where one is wanted.
  batch::PlannedSpan PlanRows(Sequence& sequence, int64_t rows);
  // The span was run and the sequence has advanced. Its full blocks and its snapshot go to the index, unless
  // they are worth nothing.
  void Commit(Sequence& sequence, bool failed);

  // Gives back everything.
  void Release(Sequence& sequence);
  // Forgets what no sequence holds.
  void Flush() { index_.Flush(); }

  // What becomes free is named in plans from now on.
  void RememberFreed();
  void NameFreed(batch::BatchPlan& plan);

  // Aborts when memory of these sequences, which are all that hold any, does not add up.
  void CheckInvariants(std::span<Sequence* const> holders) const;

 private:
  bool WantsSnapshot(const Sequence& sequence, int64_t end) const;
  void ReserveSnapshot(Sequence& sequence, int64_t end);
  void EndRestore(Sequence& sequence);
  void Publish(Sequence& sequence);

  cache::BlockAllocator blocks_;
  cache::SlotAllocator slots_;
  cache::PrefixIndex index_;
  const int64_t checkpoint_interval_;
};

}  // namespace perigee::scheduler
