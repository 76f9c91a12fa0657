#pragma once

#include <cstdint>
#include <optional>
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

  // Aborts when the free list contradicts the marks.
  void CheckInvariants() const;

 private:
  std::vector<bool> used_;
  std::vector<int32_t> free_;  // the next to be handed out is the last
};

}  // namespace perigee::cache
