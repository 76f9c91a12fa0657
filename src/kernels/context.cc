#include "kernels/context.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace perigee::kernels {
namespace {
constexpr size_t kMinBlock = size_t{1} << 20;
}

void* Workspace::Take(size_t bytes) {
  bytes = AlignUp(std::max<size_t>(bytes, 1), Buffer::kAlignment);
  while (current_ < blocks_.size() && blocks_[current_].used + bytes > blocks_[current_].memory.bytes()) {
    if (++current_ < blocks_.size()) blocks_[current_].used = 0;
  }
  if (current_ == blocks_.size()) blocks_.push_back({Buffer(std::max(bytes, kMinBlock)), 0});
  Block& block = blocks_[current_];
  void* p = block.memory.As<std::byte>() + block.used;
  block.used += bytes;
  return p;
}

float* Workspace::Floats(int64_t count) {
  PERIGEE_CHECK(count >= 0);
  return static_cast<float*>(Take(static_cast<size_t>(count) * sizeof(float)));
}

int32_t* Workspace::Ints(int64_t count) {
  PERIGEE_CHECK(count >= 0);
  return static_cast<int32_t*>(Take(static_cast<size_t>(count) * sizeof(int32_t)));
}

size_t Workspace::BytesHeld() const {
  size_t sum = 0;
  for (const Block& b : blocks_) sum += b.memory.bytes();
  return sum;
}

Workspace::Scope::Scope(Workspace& workspace)
    : workspace_(workspace),
      block_(workspace.current_),
      used_(block_ < workspace.blocks_.size() ? workspace.blocks_[block_].used : 0) {}

Workspace::Scope::~Scope() {
  // Blocks that were too small for this step are merged away: the next step finds one that fits.
  if (block_ == 0 && used_ == 0 && workspace_.blocks_.size() > 1) {
    const size_t total = workspace_.BytesHeld();
    workspace_.blocks_.clear();
    workspace_.blocks_.push_back({Buffer(total), 0});
  }
  workspace_.current_ = block_;
  if (block_ < workspace_.blocks_.size()) workspace_.blocks_[block_].used = used_;
}

}  // namespace perigee::kernels
