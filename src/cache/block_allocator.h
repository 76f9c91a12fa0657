#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace perigee::cache {

// Which blocks of the latent pool are in use. Ids only; the memory is PagedKvCache's. A block is shared by as
// many holders as it has references and is free again when the last one lets go. Freed blocks are handed out
// first, so that a lightly used pool touches little memory. One thread.
class BlockAllocator {
 public:
  explicit BlockAllocator(int64_t num_blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(refs_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int32_t ref_count(int32_t block) const;

  // A free block with one reference, or nothing when all are in use.
  std::optional<int32_t> Allocate();
  // One more holder of a block in use.
  void AddRef(int32_t block);
  // One holder less.
  void Release(int32_t block);

  // From now on remembers what becomes free; TakeFreed gives it and forgets it. For the poisoning of freed
  // memory (kPoisonFreed).
  void RememberFreed() { remember_freed_ = true; }
  std::vector<int32_t> TakeFreed() { return std::exchange(freed_, {}); }

  // Aborts when the free list and the reference counts contradict each other. O(num_blocks).
  void CheckInvariants() const;

 private:
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;  // the next to be handed out is the last
  bool remember_freed_ = false;
  std::vector<int32_t> freed_;
};

}  // namespace perigee::cache
