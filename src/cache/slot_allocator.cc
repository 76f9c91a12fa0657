#include "cache/slot_allocator.h"

#include <limits>

#include "base/check.h"

namespace perigee::cache {

SlotAllocator::SlotAllocator(int64_t num_slots) {
  PERIGEE_CHECK(num_slots >= 0 && num_slots <= std::numeric_limits<int32_t>::max());
  used_.assign(static_cast<size_t>(num_slots), false);
  free_.reserve(static_cast<size_t>(num_slots));
  for (auto slot = static_cast<int32_t>(num_slots); slot-- > 0;) free_.push_back(slot);
}

bool SlotAllocator::in_use(int32_t slot) const {
  PERIGEE_CHECK(slot >= 0 && slot < num_slots());
  return used_[static_cast<size_t>(slot)];
}

std::optional<int32_t> SlotAllocator::Allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t slot = free_.back();
  free_.pop_back();
  used_[static_cast<size_t>(slot)] = true;
  return slot;
}

void SlotAllocator::Release(int32_t slot) {
  PERIGEE_CHECK_MSG(in_use(slot), "slot released twice");
  used_[static_cast<size_t>(slot)] = false;
  free_.push_back(slot);
  if (remember_freed_) freed_.push_back(slot);
}

void SlotAllocator::CheckInvariants() const {
  std::vector<bool> listed(used_.size(), false);
  for (const int32_t slot : free_) {
    PERIGEE_CHECK_MSG(!in_use(slot), "a slot in use is on the free list");
    PERIGEE_CHECK_MSG(!listed[static_cast<size_t>(slot)], "a slot is on the free list twice");
    listed[static_cast<size_t>(slot)] = true;
  }
  for (size_t slot = 0; slot < used_.size(); ++slot) {
    PERIGEE_CHECK_MSG(used_[slot] || listed[slot], "a slot is neither used nor free");
  }
}

}  // namespace perigee::cache
