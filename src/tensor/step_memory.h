#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/step_span.h"

namespace perigee {

// Copies a step's metadata to the rank's device, in the order of its stream. The n-th array of a step lies
// where the n-th array of the step before lay, if all before it were as long: work recorded for one step (a
// CUDA graph) then finds the next step's values. On the CPU nothing is copied. One thread, the rank's.
class StepMemory {
 public:
  explicit StepMemory(Device device = Device::kCpu, Stream stream = {}) : device_(device), stream_(stream) {}
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  // A new step: the arrays of the one before are gone. Its work must be done.
  void Begin();
  // The array, copied to the device. host must stay where it is as long as the span is used.
  template <typename T>
  StepSpan<T> Mirror(std::span<const T> host) {
    if (device_ == Device::kCpu || host.empty()) return host;
    return {host, static_cast<const T*>(Copy(host.data(), host.size_bytes()))};
  }
  template <typename T>
  StepSpan<T> Mirror(const std::vector<T>& host) {
    return Mirror(std::span<const T>(host));
  }
  // Pinned host memory for what comes back from the device, valid until the next call: a copy into pageable
  // memory goes through the driver's own buffer, several times slower. Not on the CPU.
  void* Landing(size_t bytes);

 private:
  const void* Copy(const void* host, size_t bytes);

  struct Block {
    void* pinned = nullptr;
    Buffer memory;
    size_t used = 0;
  };
  Device device_;
  Stream stream_;
  std::vector<Block> blocks_;
  size_t current_ = 0;
  void* landing_ = nullptr;
  size_t landing_bytes_ = 0;
};

}  // namespace perigee
