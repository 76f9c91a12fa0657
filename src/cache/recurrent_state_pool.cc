#include "cache/recurrent_state_pool.h"

#include <cstddef>

#include "base/check.h"
#include "cache/paged_kv_cache.h"

namespace perigee::cache {

RecurrentStatePool::RecurrentStatePool(int64_t layers, int64_t num_slots, int64_t recurrent_floats,
                                       int64_t conv_floats, DType conv_dtype, Device device,
                                       MemoryAccount account)
    : layers_(layers),
      num_slots_(num_slots),
      recurrent_floats_(recurrent_floats),
      conv_floats_(conv_floats),
      conv_dtype_(conv_dtype) {
  PERIGEE_CHECK(layers >= 0 && num_slots >= 0 && recurrent_floats >= 0 && conv_floats >= 0);
  recurrent_ =
      Buffer(static_cast<size_t>(layers * num_slots * recurrent_floats) * sizeof(float), device, account);
  conv_ =
      Buffer(static_cast<size_t>(layers * num_slots * conv_floats * DTypeBytes(conv_dtype)), device, account);
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
  Fill(slot, 0, stream);
}

void RecurrentStatePool::Poison(int64_t slot, Stream stream) {
  Fill(slot, kNanByte, stream);
}

size_t RecurrentStatePool::RecurrentBytes() const {
  return static_cast<size_t>(recurrent_floats_) * sizeof(float);
}

size_t RecurrentStatePool::ConvBytes() const {
  return static_cast<size_t>(conv_floats_ * DTypeBytes(conv_dtype_));
}

void RecurrentStatePool::Fill(int64_t slot, uint8_t byte, Stream stream) {
  PERIGEE_CHECK(slot >= 0 && slot < num_slots_);
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto at = static_cast<size_t>(layer * num_slots_ + slot);
    recurrent_.Fill(at * RecurrentBytes(), RecurrentBytes(), byte, stream);
    conv_.Fill(at * ConvBytes(), ConvBytes(), byte, stream);
  }
}

void RecurrentStatePool::Copy(int64_t from, int64_t to, Stream stream) {
  PERIGEE_CHECK(from >= 0 && from < num_slots_ && to >= 0 && to < num_slots_ && from != to);
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto source = static_cast<size_t>(layer * num_slots_ + from);
    const auto target = static_cast<size_t>(layer * num_slots_ + to);
    recurrent_.CopyWithin(source * RecurrentBytes(), target * RecurrentBytes(), RecurrentBytes(), stream);
    conv_.CopyWithin(source * ConvBytes(), target * ConvBytes(), ConvBytes(), stream);
  }
}

}  // namespace perigee::cache
