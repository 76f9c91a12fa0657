#include "cache/block_allocator.h"

#include <limits>

#include "base/check.h"

namespace perigee::cache {

BlockAllocator::BlockAllocator(int64_t num_blocks) {
  PERIGEE_CHECK(num_blocks >= 0 && num_blocks <= std::numeric_limits<int32_t>::max());
  refs_.assign(static_cast<size_t>(num_blocks), 0);
  free_.reserve(static_cast<size_t>(num_blocks));
  for (auto block = static_cast<int32_t>(num_blocks); block-- > 0;) free_.push_back(block);
}

int32_t BlockAllocator::ref_count(int32_t block) const {
  PERIGEE_CHECK(block >= 0 && block < num_blocks());
  return refs_[static_cast<size_t>(block)];
}

std::optional<int32_t> BlockAllocator::Allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  refs_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockAllocator::AddRef(int32_t block) {
  PERIGEE_CHECK_MSG(ref_count(block) > 0, "reference to a free block");
  ++refs_[static_cast<size_t>(block)];
}

void BlockAllocator::Release(int32_t block) {
  PERIGEE_CHECK_MSG(ref_count(block) > 0, "block released twice");
  if (--refs_[static_cast<size_t>(block)] > 0) return;
  free_.push_back(block);
  if (remember_freed_) freed_.push_back(block);
}

void BlockAllocator::CheckInvariants() const {
  std::vector<bool> listed(refs_.size(), false);
  for (const int32_t block : free_) {
    PERIGEE_CHECK_MSG(ref_count(block) == 0, "a block in use is on the free list");
    PERIGEE_CHECK_MSG(!listed[static_cast<size_t>(block)], "a block is on the free list twice");
    listed[static_cast<size_t>(block)] = true;
  }
  for (size_t block = 0; block < refs_.size(); ++block) {
    PERIGEE_CHECK_MSG(refs_[block] > 0 || listed[block], "a block is neither used nor free");
  }
}

}  // namespace perigee::cache
