#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/paged_kv_cache.h"
#include "cache/slot_allocator.h"

namespace perigee::cache {

// How the rows that made a block or a state were computed: the position from which on they ran in the decode
// form, all before it in the prompt form. Equal tokens of equal origin have equal bits, kMixed apart.
using Origin = int64_t;
inline constexpr Origin kPromptForm = std::numeric_limits<int64_t>::max();
// Built upon reused rows of another form than the sequence would have used itself.
inline constexpr Origin kMixed = -1;

// Which prefixes are in the pools: a tree of blocks, each child named by its kBlockTokens token ids, exactly.
// A node holds one reference to a latent block and may have a snapshot, the state after the last token of its
// block, in a slot from [first_slot, first_slot + num_snapshots). Reuse ends only where a snapshot is.
//
// Sequences hold the path from the root to a node; what nobody holds is evicted when its memory is wanted,
// least recently used first, leaves before their parents, and snapshots apart from blocks. Ids only: memory
// is copied by those who run the plans. Deterministic. One thread.
class PrefixIndex {
 public:
  struct Node;

  // A sequence's place in the tree. Whoever has it gives it back with Release.
  struct Hold {
    Node* node = nullptr;  // the deepest node held; null: nothing
    int64_t blocks = 0;    // nodes from the root, `node` included
  };

  struct Match {
    Node* node = nullptr;  // where reuse ends; null: nothing to reuse
    int64_t tokens = 0;    // reusable, a multiple of kBlockTokens
    int64_t known = 0;     // tokens whose blocks are there, >= tokens; more: a state is missing at this place
    int64_t unheld = 0;    // blocks on the path to `node` that nobody holds
    bool mixed = false;    // not all of it was computed in the prompt form
    int32_t snapshot = -1;  // slot of the state at `node`
  };

  // `blocks` outlives the index.
  PrefixIndex(BlockAllocator& blocks, int64_t first_slot, int64_t num_snapshots);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The longest reusable prefix of `tokens`; nothing is changed.
  Match Find(std::span<const int32_t> tokens) const;
  // The same for a sequence that must get the bits it had: prompt form up to `prompt_size`, decode form
  // after.
  Match FindExact(std::span<const int32_t> tokens, int64_t prompt_size) const;

  // Holds the path of a match, appends its blocks, each with a reference for the caller, and pins the
  // snapshot. The tree has not changed since the match was found.
  Hold Take(const Match& match, std::vector<int32_t>& blocks);
  // The snapshot was copied: it may go.
  void Unpin(Node& node);

  // Moves a hold one block down, to the node of `tokens` (kBlockTokens of them), which is made of the
  // caller's `block` when there is none. Gives the block that the caller has from now on: another one, of
  // equal bits, when the node has such; its own reference to `block` is then gone.
  int32_t Descend(Hold& hold, std::span<const int32_t> tokens, int32_t block, Origin origin);
  // Gives up the path.
  void Release(Hold& hold);
  // Lets nodes on the path that nobody else holds have the caller's blocks instead of their own, which frees
  // the latter. Gives how many.
  int64_t ReplaceOwn(const Hold& hold, std::span<const int32_t> blocks, std::span<const Origin> origins);

  // A slot to write a snapshot into: free, or taken from the least recently used one. Nothing when all are
  // pinned or being written. Ends with Attach or Discard.
  std::optional<int32_t> ReserveSnapshot();
  // Takes the node's snapshot away, so that its slot can be written anew, as after ReserveSnapshot. False
  // when it is not in `slot` (any more) or of use to others: reused, pinned or with several continuations.
  bool ReclaimSnapshot(Node& node, int32_t slot);
  // `slot` holds the state after `node`. False: the node keeps a better or equal one and `slot` is free.
  bool Attach(Node& node, int32_t slot, Origin origin);
  void Discard(int32_t slot);

  // Frees the least recently used block that nobody holds, with its snapshot. False when there is none.
  bool EvictBlock();
  // Forgets all that nobody holds, and all snapshots that are not pinned.
  void Flush();

  // See SlotAllocator; of snapshots.
  void RememberFreed() { slots_.RememberFreed(); }
  std::vector<int32_t> TakeFreedSlots();

  int64_t cached_blocks() const { return unheld_; }  // that EvictBlock can free
  int64_t num_snapshots() const { return slots_.num_slots(); }
  int64_t used_snapshots() const { return slots_.num_slots() - slots_.num_free(); }
  uint64_t evicted_blocks() const { return evicted_blocks_; }
  uint64_t evicted_snapshots() const { return evicted_snapshots_; }

  // Every block that a node refers to. O(nodes).
  std::vector<int32_t> Blocks() const;
  // Aborts when counts, order of use or snapshots contradict the tree. `reserved` slots are being written.
  // O(nodes).
  void CheckInvariants(int64_t reserved) const;

 private:
  using Key = std::array<int32_t, kBlockTokens>;
  using Use = std::pair<uint64_t, Node*>;  // time of use; unique by itself

  template <typename Accept>
  Match Walk(std::span<const int32_t> tokens, Accept accept) const;
  void AddHolder(Node& node);
  void DropHolder(Node& node);
  void DropSnapshot(Node& node);
  void Remove(Node& node);
  template <typename Visit>
  void ForEach(Visit visit) const;

  BlockAllocator& blocks_;
  const int32_t first_slot_;
  SlotAllocator slots_;
  std::unique_ptr<Node> root_;
  uint64_t clock_ = 0;  // one tick a use
  int64_t unheld_ = 0;
  std::set<Use> leaves_;     // that nobody holds
  std::set<Use> snapshots_;  // that are not pinned, by their own time of use
  uint64_t evicted_blocks_ = 0;
  uint64_t evicted_snapshots_ = 0;
};

}  // namespace perigee::cache
