#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/device.h"
#include "tensor/memory_ledger.h"

namespace perigee {

// Owning, zero-initialised storage on a device, aligned for vector loads. On the CPU pages are committed by
// the first write, so that a large pool costs only what is used. Movable, not copyable. Allocation failure is
// reported by the constructor as a CHECK; sizes are planned beforehand (engine/memory_budget). Counted in its
// account until it is freed.
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t bytes, Device device = Device::kCpu, MemoryAccount account = {});
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  // A copy of host memory; on a device when the call returns.
  static Buffer Of(const void* host, size_t bytes, Device device, MemoryAccount account = {});

  // Sets the `bytes` from `offset` on; copies `bytes` from one offset to another that is apart. In the order
  // of the stream.
  void Fill(size_t offset, size_t bytes, uint8_t byte, Stream stream = {});
  void CopyWithin(size_t from, size_t to, size_t bytes, Stream stream = {});

  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  void* data() const { return data_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  void Release();

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_ = Device::kCpu;
  MemoryAccount account_;
};

}  // namespace perigee
