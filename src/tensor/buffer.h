#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee {

// Owning, zero-initialised storage aligned for vector loads. Pages are committed by the first write, so that
// a large pool costs only what is used. Movable, not copyable. Allocation failure is reported by the
// constructor as a CHECK; sizes are planned beforehand (cache_budget).
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  size_t bytes() const { return bytes_; }
  void* data() const { return data_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace perigee
