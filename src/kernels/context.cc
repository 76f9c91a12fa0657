#include "kernels/context.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/math.h"

namespace perigee::kernels {
namespace {
constexpr size_t kMinBlock = size_t{1} << 20;
constexpr size_t kDeviceAlignment = 256;

size_t Rounded(size_t bytes, Device device) {
  return AlignUp(std::max<size_t>(bytes, 1), device == Device::kCpu ? Buffer::kAlignment : kDeviceAlignment);
}

// Floats from one running task's scratch to the next one's.
int64_t ScratchStride(int64_t scratch_floats) {
  return AlignUp<int64_t>(scratch_floats, 16);
}
}  // namespace

Workspace::Workspace(Device device, size_t reserve, MemoryAccount account)
    : device_(device), account_(account) {
  if (reserve > 0) blocks_.push_back({Buffer(reserve, device, account), 0});
}

void* Workspace::Take(size_t bytes) {
  bytes = Rounded(bytes, device_);
  while (current_ < blocks_.size() && blocks_[current_].used + bytes > blocks_[current_].memory.bytes()) {
    if (++current_ < blocks_.size()) blocks_[current_].used = 0;
  }
  if (current_ == blocks_.size())
    blocks_.push_back({Buffer(std::max(bytes, kMinBlock), device_, account_), 0});
  Block& block = blocks_[current_];
  void* p = block.memory.As<std::byte>() + block.used;
  block.used += bytes;
  taken_ += bytes;
  peak_taken_ = std::max(peak_taken_, taken_);
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
      used_(block_ < workspace.blocks_.size() ? workspace.blocks_[block_].used : 0),
      taken_(workspace.taken_) {}

Workspace::Scope::~Scope() {
  // Blocks that were too small for this step are merged away: the next step finds one that fits.
  if (block_ == 0 && used_ == 0 && workspace_.blocks_.size() > 1) {
    const size_t total = workspace_.BytesHeld();
    workspace_.blocks_.clear();
    workspace_.blocks_.push_back({Buffer(total, workspace_.device_, workspace_.account_), 0});
  }
  workspace_.current_ = block_;
  workspace_.taken_ = taken_;
  if (block_ < workspace_.blocks_.size()) workspace_.blocks_[block_].used = used_;
}

Matrix KernelContext::Room(int64_t rows, int64_t cols, DType dtype) const {
  PERIGEE_CHECK(rows >= 0 && cols >= 0);
  void* data = workspace->Bytes(static_cast<size_t>(rows * cols * DTypeBytes(dtype)));
  return {static_cast<std::byte*>(data), dtype, rows, cols, cols};
}

void WorkspaceTally::Floats(int64_t count) {
  PERIGEE_CHECK(count >= 0);
  taken_ += Rounded(static_cast<size_t>(count) * sizeof(float), Device::kCpu);
  peak_ = std::max(peak_, taken_);
}

void WorkspaceTally::Tasks(int64_t tasks, int64_t scratch_floats) {
  const Scope scope(*this);
  const int64_t slots = std::min<int64_t>(tasks, threads_);
  if (slots > 0) Floats(slots * ScratchStride(scratch_floats));
}

void ForTasks(const KernelContext& context, int64_t tasks, int64_t scratch_floats,
              const std::function<void(int64_t, float*)>& body) {
  const int64_t slots = std::min<int64_t>(tasks, context.pool->size());
  if (slots <= 0) return;
  const Workspace::Scope scope(*context.workspace);
  const int64_t stride = ScratchStride(scratch_floats);
  float* memory = context.workspace->Floats(slots * stride);
  std::atomic<int64_t> next{0};
  context.pool->ParallelFor(slots, [&](int64_t slot) {
    for (int64_t t = next.fetch_add(1); t < tasks; t = next.fetch_add(1)) body(t, memory + slot * stride);
  });
}

}  // namespace perigee::kernels
