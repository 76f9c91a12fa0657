#include "cache/recurrent_state_pool.h"

#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "tensor/device_memory.h"

namespace perigee::cache {

RecurrentStatePool::RecurrentStatePool(int64_t layers, int64_t num_slots, int64_t recurrent_floats,
                                       int64_t conv_floats, DType conv_dtype, Device device)
    : layers_(layers),
      num_slots_(num_slots),
      recurrent_floats_(recurrent_floats),
      conv_floats_(conv_floats),
      conv_dtype_(conv_dtype) {
  PERIGEE_CHECK(layers >= 0 && num_slots >= 0 && recurrent_floats >= 0 && conv_floats >= 0);
  recurrent_ = Buffer(static_cast<size_t>(layers * num_slots * recurrent_floats) * sizeof(float), device);
  conv_ = Buffer(static_cast<size_t>(layers * num_slots * conv_floats * DTypeBytes(conv_dtype)), device);
}

StateView RecurrentStatePool::View(int64_t layer) const {
  PERIGEE_CHECK(layer >= 0 && layer < layers_);
  return {.recurrent = recurrent_.As<float>() + layer * num_slots_ * recurrent_floats_,
          .conv = conv_.As<std::byte>() + layer * num_slots_ * conv_floats_ * DTypeBytes(conv_dtype_),
          .recurrent_stride = recurrent_floats_,
          .conv_stride = conv_floats_,
          .conv_dtype = conv_dtype_};
}

void RecurrentStatePool::Zero(int64_t slot, Stream stream) {
  PERIGEE_CHECK(slot >= 0 && slot < num_slots_);
  const auto recurrent_bytes = static_cast<size_t>(recurrent_floats_) * sizeof(float);
  const auto conv_bytes = static_cast<size_t>(conv_floats_ * DTypeBytes(conv_dtype_));
  const auto zero = [&](const Buffer& buffer, int64_t layer, size_t bytes) {
    std::byte* at = buffer.As<std::byte>() + static_cast<size_t>(layer * num_slots_ + slot) * bytes;
    if (buffer.device() == Device::kCpu) {
      std::memset(at, 0, bytes);
    } else {
      device_memory::Zero(at, bytes, stream);
    }
  };
  for (int64_t layer = 0; layer < layers_; ++layer) {
    zero(recurrent_, layer, recurrent_bytes);
    zero(conv_, layer, conv_bytes);
  }
}

}  // namespace perigee::cache
