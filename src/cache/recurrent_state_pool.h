#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/buffer.h"
#include "tensor/cache_view.h"

namespace perigee::cache {

// Memory of the KDA states of one rank: `num_slots` slots, each holding the recurrent state and the conv tail
// of every KDA layer. A slot must be zeroed, or copied into, when a sequence gets it (a freed slot keeps
// stale data).
class RecurrentStatePool {
 public:
  // conv_floats: elements of conv_dtype.
  RecurrentStatePool(int64_t layers, int64_t num_slots, int64_t recurrent_floats, int64_t conv_floats,
                     DType conv_dtype = DType::kF32, Device device = Device::kCpu,
                     MemoryAccount account = {});

  int64_t num_slots() const { return num_slots_; }
  StateView View(int64_t layer) const;
  // In the order of the stream.
  void Zero(int64_t slot, Stream stream = {});
  // Makes `to` hold what `from` holds.
  void Copy(int64_t from, int64_t to, Stream stream = {});
  // Fills the slot with NaN: whoever reads it without writing first shows.
  void Poison(int64_t slot, Stream stream = {});
  uint64_t Bytes() const { return recurrent_.bytes() + conv_.bytes(); }

 private:
  void Fill(int64_t slot, uint8_t byte, Stream stream);
  size_t RecurrentBytes() const;  // of a slot in one layer
  size_t ConvBytes() const;

  int64_t layers_;
  int64_t num_slots_;
  int64_t recurrent_floats_;
  int64_t conv_floats_;
  DType conv_dtype_;
  Buffer recurrent_;  // [layers, num_slots, recurrent_floats]
  Buffer conv_;       // [layers, num_slots, conv_floats]
};

}  // namespace perigee::cache
