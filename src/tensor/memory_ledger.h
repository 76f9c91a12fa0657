#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace perigee {

// What a rank's memory is for.
enum class MemoryKind : uint8_t {
  kWeights,    // as the layers hold them
  kLatents,    // the paged latent pool
  kStates,     // slots of running sequences: recurrent states and conv tails
  kSnapshots,  // states kept at prefix boundaries
  kWorkspace,  // scratch of a step
};
inline constexpr size_t kNumMemoryKinds = 5;
std::string_view MemoryKindName(MemoryKind kind);

// Bytes by kind.
using MemoryBytes = std::array<uint64_t, kNumMemoryKinds>;
constexpr uint64_t BytesOf(const MemoryBytes& bytes, MemoryKind kind) {
  return bytes[static_cast<size_t>(kind)];
}
constexpr uint64_t TotalBytes(const MemoryBytes& bytes) {
  uint64_t sum = 0;
  for (const uint64_t b : bytes) sum += b;
  return sum;
}

// Counts what one rank allocates, as asked for (the pages behind it may be fewer, untouched, or a few more).
// Outlives what it counts. Thread-safe.
class MemoryLedger {
 public:
  MemoryLedger() = default;
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  void Add(MemoryKind kind, uint64_t bytes);
  void Remove(MemoryKind kind, uint64_t bytes);

  MemoryBytes held() const;
  // The most that each kind ever held.
  MemoryBytes peak() const;

 private:
  std::array<std::atomic<uint64_t>, kNumMemoryKinds> held_{};
  std::array<std::atomic<uint64_t>, kNumMemoryKinds> peak_{};
};

// Where an allocation is counted; nowhere without a ledger.
struct MemoryAccount {
  MemoryLedger* ledger = nullptr;
  MemoryKind kind = MemoryKind::kWeights;

  void Add(uint64_t bytes) const {
    if (ledger != nullptr) ledger->Add(kind, bytes);
  }
  void Remove(uint64_t bytes) const {
    if (ledger != nullptr) ledger->Remove(kind, bytes);
  }
};

}  // namespace perigee
