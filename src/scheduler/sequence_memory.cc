#include "scheduler/sequence_memory.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "cache/paged_kv_cache.h"
#include "scheduler/snapshot_policy.h"

namespace perigee::scheduler {

using cache::kBlockTokens;

SequenceMemory::SequenceMemory(int64_t num_blocks, int64_t num_slots, int64_t num_snapshots,
                               int64_t checkpoint_interval)
    : blocks_(num_blocks),
      slots_(num_slots),
      index_(blocks_, num_slots, num_snapshots),
      checkpoint_interval_(checkpoint_interval) {
  PERIGEE_CHECK(!caching() || (checkpoint_interval > 0 && checkpoint_interval % kBlockTokens == 0));
}

int64_t SequenceMemory::BlocksFor(int64_t tokens) {
  return CeilDiv(tokens, kBlockTokens);
}

int64_t SequenceMemory::BlocksLacking(const Sequence& sequence, int64_t tokens) {
  return std::max<int64_t>(BlocksFor(tokens) - static_cast<int64_t>(sequence.memory.blocks.size()), 0);
}

bool SequenceMemory::CanReuse(const Sequence& sequence) const {
  return caching() && sequence.ReuseLimit() >= kBlockTokens;
}

SequenceMemory::Match SequenceMemory::Find(const Sequence& sequence, int64_t limit) const {
  if (!CanReuse(sequence)) return {};
  limit = std::min(limit, sequence.ReuseLimit());
  const std::span<const int32_t> tokens = sequence.tokens().first(static_cast<size_t>(limit));
  return sequence.has_results() ? index_.FindExact(tokens, sequence.prompt_size()) : index_.Find(tokens);
}

void SequenceMemory::TakeSlot(Sequence& sequence) {
  PERIGEE_CHECK(sequence.memory.slot < 0 && sequence.memory.blocks.empty());
  const std::optional<int32_t> slot = slots_.Allocate();
  PERIGEE_CHECK(slot.has_value());
  sequence.memory.slot = *slot;
}

void SequenceMemory::Hold(Sequence& sequence, const Match& match) {
  HeldMemory& m = sequence.memory;
  PERIGEE_CHECK(m.slot >= 0 && m.blocks.empty());
  m.path = index_.Take(match, m.blocks);
  if (match.node == nullptr) return;
  m.restore_from = match.snapshot;
  m.restore_node = match.node;
}

bool SequenceMemory::Free(int64_t lacking) {
  while (blocks_.num_free() < lacking) {
    if (!index_.EvictBlock()) return false;
  }
  return true;
}

bool SequenceMemory::FreeDuplicates(const Sequence& sequence) {
  std::vector<cache::Origin> origins;
  for (int64_t i = 1; i <= sequence.memory.path.blocks; ++i) {
    origins.push_back(sequence.OriginAt(i * kBlockTokens));
  }
  return index_.ReplaceOwn(sequence.memory.path, sequence.memory.blocks, origins) > 0;
}

void SequenceMemory::Grow(Sequence& sequence, int64_t tokens) {
  for (int64_t lacking = BlocksLacking(sequence, tokens); lacking > 0; --lacking) {
    const std::optional<int32_t> block = blocks_.Allocate();
    PERIGEE_CHECK(block.has_value());
    sequence.memory.blocks.push_back(*block);
  }
}

int64_t SequenceMemory::NextCut(const Sequence& sequence, int64_t computed, int64_t branch_point) const {
  // Those who want log-probabilities of a prompt want it all, once: they are not cut for others.
  if (!caching() || sequence.wants_prompt_logprobs()) return sequence.prompt_size();
  const SnapshotPoints points{
      .prompt_size = sequence.prompt_size(), .interval = checkpoint_interval_, .branch = branch_point};
  return points.After(computed);
}

bool SequenceMemory::WantsSnapshot(const Sequence& sequence, int64_t end) const {
  if (!caching() || end % kBlockTokens != 0) return false;
  // In an answer, and at the end of a prompt, the newest place is the best one.
  return end >= sequence.prompt_size() || NextCut(sequence, end - 1, sequence.branch_point) == end;
}

void SequenceMemory::ReserveSnapshot(Sequence& sequence, int64_t end) {
  HeldMemory& m = sequence.memory;
  const bool of_answer = end >= sequence.prompt_size();
  if (of_answer && m.answer_node != nullptr) {
    const int64_t previous = end - kBlockTokens;
    cache::PrefixIndex::Node& node = *std::exchange(m.answer_node, nullptr);
    const bool stays = previous % checkpoint_interval_ == 0;
    if (!stays && index_.ReclaimSnapshot(node, m.answer_snapshot)) {
      m.save_to = m.answer_snapshot;
      return;
    }
  }
  m.save_to = index_.ReserveSnapshot().value_or(-1);
}

batch::PlannedSpan SequenceMemory::PlanRows(Sequence& sequence, int64_t rows) {
  const int64_t end = sequence.num_computed() + rows;
  if (WantsSnapshot(sequence, end)) ReserveSnapshot(sequence, end);
  return sequence.PlanRows(rows);
}

void SequenceMemory::EndRestore(Sequence& sequence) {
  HeldMemory& m = sequence.memory;
  if (m.restore_node != nullptr) index_.Unpin(*m.restore_node);
  m.restore_node = nullptr;
  m.restore_from = -1;
}

void SequenceMemory::Commit(Sequence& sequence, bool failed) {
  EndRestore(sequence);
  if (!caching() || failed) return;  // a snapshot in the making goes with the sequence
  Publish(sequence);
  HeldMemory& m = sequence.memory;
  const int32_t slot = std::exchange(m.save_to, -1);
  if (slot < 0) return;
  const int64_t end = sequence.num_computed();
  PERIGEE_CHECK(m.path.blocks * kBlockTokens == end);
  const bool kept = index_.Attach(*m.path.node, slot, sequence.OriginAt(end));
  if (kept && end >= sequence.prompt_size()) {
    m.answer_node = m.path.node;
    m.answer_snapshot = slot;
  }
}

void SequenceMemory::Publish(Sequence& sequence) {
  HeldMemory& m = sequence.memory;
  for (int64_t end = (m.path.blocks + 1) * kBlockTokens; end <= sequence.num_computed();
       end += kBlockTokens) {
    int32_t& block = m.blocks[static_cast<size_t>(m.path.blocks)];
    const auto first = static_cast<size_t>(end - kBlockTokens);
    block =
        index_.Descend(m.path, sequence.tokens().subspan(first, kBlockTokens), block, sequence.OriginAt(end));
  }
}

void SequenceMemory::LetGo(Sequence& sequence) {
  HeldMemory& m = sequence.memory;
  EndRestore(sequence);
  if (m.save_to >= 0) index_.Discard(m.save_to);
  m.save_to = -1;
  m.answer_node = nullptr;
  index_.Release(m.path);
  // Last block first: the next owner then gets them in ascending order again.
  for (auto block = m.blocks.rbegin(); block != m.blocks.rend(); ++block) blocks_.Release(*block);
  m.blocks.clear();
}

void SequenceMemory::Release(Sequence& sequence) {
  LetGo(sequence);
  if (sequence.memory.slot >= 0) slots_.Release(sequence.memory.slot);
  sequence.memory.slot = -1;
}

void SequenceMemory::RememberFreed() {
  blocks_.RememberFreed();
  slots_.RememberFreed();
  index_.RememberFreed();
}

void SequenceMemory::NameFreed(batch::BatchPlan& plan) {
  plan.freed_blocks = blocks_.TakeFreed();
  plan.freed_slots = slots_.TakeFreed();
  const std::vector<int32_t> snapshots = index_.TakeFreedSlots();
  plan.freed_slots.insert(plan.freed_slots.end(), snapshots.begin(), snapshots.end());
}

void SequenceMemory::CheckInvariants(std::span<Sequence* const> holders) const {
  blocks_.CheckInvariants();
  slots_.CheckInvariants();
  index_.CheckInvariants(0);
  std::vector<int32_t> references(static_cast<size_t>(blocks_.num_blocks()), 0);
  for (const int32_t block : index_.Blocks()) {
    PERIGEE_CHECK_MSG(++references[static_cast<size_t>(block)] == 1, "a block is in the index twice");
  }
  std::vector<bool> slot_held(static_cast<size_t>(slots_.num_slots()), false);
  for (const Sequence* s : holders) {
    const HeldMemory& m = s->memory;
    PERIGEE_CHECK_MSG(slots_.in_use(m.slot) && !slot_held[static_cast<size_t>(m.slot)],
                      "a slot has two owners");
    slot_held[static_cast<size_t>(m.slot)] = true;
    PERIGEE_CHECK_MSG(BlocksFor(s->num_computed()) == static_cast<int64_t>(m.blocks.size()),
                      "a sequence holds more or fewer blocks than its tokens need");
    for (const int32_t block : m.blocks) ++references[static_cast<size_t>(block)];
  }
  for (const Sequence* s : holders) {
    // What it will write is its own.
    if (s->num_computed() % kBlockTokens == 0) continue;
    PERIGEE_CHECK_MSG(references[static_cast<size_t>(s->memory.blocks.back())] == 1,
                      "a block has two owners");
  }
  int64_t used = 0;
  for (int32_t block = 0; block < blocks_.num_blocks(); ++block) {
    const int32_t expected = references[static_cast<size_t>(block)];
    PERIGEE_CHECK_MSG(blocks_.ref_count(block) == expected,
                      "a block has more or fewer owners than references");
    used += expected > 0 ? 1 : 0;
  }
  PERIGEE_CHECK_MSG(used + blocks_.num_free() == blocks_.num_blocks(), "a block is lost");
  PERIGEE_CHECK_MSG(static_cast<int64_t>(holders.size()) + slots_.num_free() == slots_.num_slots(),
                    "a slot is lost");
}

}  // namespace perigee::scheduler
