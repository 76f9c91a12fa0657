#include "tensor/memory_ledger.h"

#include "base/check.h"

namespace perigee {
namespace {

MemoryBytes Read(const std::array<std::atomic<uint64_t>, kNumMemoryKinds>& counters) {
  MemoryBytes bytes{};
  for (size_t k = 0; k < kNumMemoryKinds; ++k) bytes[k] = counters[k].load();
  return bytes;
}

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kWeights:
      return "weights";
    case MemoryKind::kLatents:
      return "latents";
    case MemoryKind::kStates:
      return "states";
    case MemoryKind::kSnapshots:
      return "snapshots";
    case MemoryKind::kWorkspace:
      return "workspace";
  }
  return "?";
}

void MemoryLedger::Add(MemoryKind kind, uint64_t bytes) {
  const auto k = static_cast<size_t>(kind);
  const uint64_t now = held_[k].fetch_add(bytes) + bytes;
  uint64_t peak = peak_[k].load();
  while (peak < now && !peak_[k].compare_exchange_weak(peak, now)) {
  }
}

void MemoryLedger::Remove(MemoryKind kind, uint64_t bytes) {
  const uint64_t before = held_[static_cast<size_t>(kind)].fetch_sub(bytes);
  PERIGEE_CHECK(before >= bytes);
}

MemoryBytes MemoryLedger::held() const {
  return Read(held_);
}

MemoryBytes MemoryLedger::peak() const {
  return Read(peak_);
}

}  // namespace perigee
