#pragma once

#include <span>

#include "tensor/buffer.h"

namespace perigee {

// A small parameter in floats (a norm's weight, a bias) where the kernels of a rank read it. Immutable.
class Parameter {
 public:
  Parameter() = default;
  Parameter(std::span<const float> values, Device device, MemoryAccount account = {})
      : memory_(Buffer::Of(values.data(), values.size_bytes(), device, account)), count_(values.size()) {}

  size_t size() const { return count_; }
  const float* data() const { return memory_.As<float>(); }
  // Of the device's memory.
  operator std::span<const float>() const { return {data(), count_}; }

 private:
  Buffer memory_;
  size_t count_ = 0;
};

}  // namespace perigee
