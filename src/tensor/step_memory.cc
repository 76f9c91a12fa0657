#include "tensor/step_memory.h"

#include <algorithm>
#include <cstring>

#include "tensor/device_memory.h"

namespace perigee {
namespace {
constexpr size_t kMinBlock = size_t{4} << 20;
constexpr size_t kAlignment = 256;
}  // namespace

StepMemory::~StepMemory() {
  for (const Block& b : blocks_) device_memory::FreePinned(b.pinned);
  if (landing_ != nullptr) device_memory::FreePinned(landing_);
}

void StepMemory::Begin() {
  for (Block& b : blocks_) b.used = 0;
  current_ = 0;
}

void* StepMemory::Landing(size_t bytes) {
  if (bytes > landing_bytes_) {
    if (landing_ != nullptr) device_memory::FreePinned(landing_);
    landing_ = device_memory::AllocatePinned(bytes);
    landing_bytes_ = bytes;
  }
  return landing_;
}

const void* StepMemory::Copy(const void* host, size_t bytes) {
  const size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (current_ < blocks_.size() && blocks_[current_].used + room > blocks_[current_].memory.bytes())
    ++current_;
  if (current_ == blocks_.size()) {
    const size_t size = std::max(room, kMinBlock);
    blocks_.push_back({device_memory::AllocatePinned(size), Buffer(size, device_), 0});
  }
  Block& block = blocks_[current_];
  std::byte* staged = static_cast<std::byte*>(block.pinned) + block.used;
  std::byte* copied = block.memory.As<std::byte>() + block.used;
  block.used += room;
  std::memcpy(staged, host, bytes);
  device_memory::CopyToDevice(copied, staged, bytes, stream_);
  return copied;
}

}  // namespace perigee
