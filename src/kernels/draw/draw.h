#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace perigee::kernels {

// A matrix whose elements are drawn rather than read. Element (r, c) of the whole is uniform in [low, high),
// rounded to BF16, and depends on the seed and its place alone: the same on every device and however the
// matrix is cut.
struct DrawnMatrix {
  uint64_t seed = 0;
  float low = 0;
  float high = 0;
  int64_t whole_cols = 0;
  // The part of it that is meant.
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_col = 0;
  int64_t cols = 0;

  DrawnMatrix Rows(int64_t begin, int64_t count) const;
  DrawnMatrix Cols(int64_t begin, int64_t count) const;
};

// Element `place` of a tensor, before it is rounded.
float DrawnElement(uint64_t seed, int64_t place, float low, float high);

// Writes the part to out [rows, cols] in the device's memory; done when the call returns.
void Draw(const DrawnMatrix& matrix, BFloat16* out, Device device);

}  // namespace perigee::kernels
