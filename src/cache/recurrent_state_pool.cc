#include "cache/recurrent_state_pool.h"

#include <algorithm>

#include "base/check.h"

namespace perigee::cache {

RecurrentStatePool::RecurrentStatePool(int64_t layers, int64_t num_slots, int64_t recurrent_floats,
                                       int64_t conv_floats)
    : layers_(layers), num_slots_(num_slots), recurrent_floats_(recurrent_floats), conv_floats_(conv_floats) {
  PERIGEE_CHECK(layers >= 0 && num_slots >= 0 && recurrent_floats >= 0 && conv_floats >= 0);
  recurrent_ = Buffer(static_cast<size_t>(layers * num_slots * recurrent_floats) * sizeof(float));
  conv_ = Buffer(static_cast<size_t>(layers * num_slots * conv_floats) * sizeof(float));
}

StateView RecurrentStatePool::View(int64_t layer) const {
  PERIGEE_CHECK(layer >= 0 && layer < layers_);
  return {.recurrent = recurrent_.As<float>() + layer * num_slots_ * recurrent_floats_,
          .conv = conv_.As<float>() + layer * num_slots_ * conv_floats_,
          .recurrent_stride = recurrent_floats_,
          .conv_stride = conv_floats_};
}

void RecurrentStatePool::Zero(int64_t slot) {
  PERIGEE_CHECK(slot >= 0 && slot < num_slots_);
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const StateView view = View(layer);
    std::fill_n(view.Recurrent(slot), recurrent_floats_, 0.0f);
    std::fill_n(view.Conv(slot), conv_floats_, 0.0f);
  }
}

}  // namespace perigee::cache
