#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace perigee::cache {

// Which slots of the recurrent-state pool are in use. A slot has exactly one holder; its contents are stale
// when it is handed out. One thread.
class SlotAllocator {
 public:
  explicit SlotAllocator(int64_t num_slots);

  int64_t num_slots() const { return static_cast<int64_t>(used_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  bool in_use(int32_t slot) const;

  std::optional<int32_t> Allocate();
  void Release(int32_t slot);

  // From now on remembers what becomes free; TakeFreed gives it and forgets it. For the poisoning of freed
  // memory (kPoisonFreed).
  void RememberFreed() { remember_freed_ = true; }
  std::vector<int32_t> TakeFreed() { return std::exchange(freed_, {}); }

  // Aborts when the free list contradicts the marks.
  void CheckInvariants() const;

 private:
  std::vector<bool> used_;
  std::vector<int32_t> free_;  // the next to be handed out is the last
  bool remember_freed_ = false;
  std::vector<int32_t> freed_;
};

}  // namespace perigee::cache
