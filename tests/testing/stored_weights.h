#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tensor/dtype.h"
#include "testing/random.h"

namespace perigee::test {

// A random weight matrix as a checkpoint stores it, with the exact float values beside it. Rows lie further
// apart than they are long, the gaps hold ones.
class StoredWeights {
 public:
  StoredWeights(Random& random, DType dtype, int64_t rows, int64_t cols, double scale)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + 3) {
    const std::vector<float> raw = random.Normals(rows * cols, scale);
    if (dtype == DType::kF32) {
      wide_.assign(static_cast<size_t>(rows * stride_), 1.0f);
    } else {
      narrow_.assign(static_cast<size_t>(rows * stride_), dtype == DType::kF16 ? 0x3c00 : 0x3f80);
    }
    values_.reserve(raw.size());
    for (int64_t i = 0; i < rows * cols; ++i) values_.push_back(Store(i / cols * stride_ + i % cols, raw[i]));
  }

  kernels::StoredMatrix matrix() const {
    const void* data = dtype_ == DType::kF32 ? static_cast<const void*>(wide_.data()) : narrow_.data();
    return {.data = data, .dtype = dtype_, .rows = rows_, .cols = cols_, .row_stride = stride_};
  }
  // [rows, cols], exactly what is stored.
  const std::vector<float>& values() const { return values_; }

 private:
  float Store(int64_t at, float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    if (dtype_ == DType::kF32) {
      wide_[at] = v;
      return v;
    }
    if (dtype_ == DType::kBF16) {
      narrow_[at] = static_cast<uint16_t>(bits >> 16);
      return BFloat16ToFloat(narrow_[at]);
    }
    const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
    const uint32_t sign = bits >> 16 & 0x8000;
    // Cut, not rounded; below the smallest normal half becomes zero, above the largest is not used in tests.
    narrow_[at] = static_cast<uint16_t>(exponent <= 0 ? sign : sign | exponent << 10 | (bits >> 13 & 0x3ff));
    return HalfToFloat(narrow_[at]);
  }

  DType dtype_;
  int64_t rows_;
  int64_t cols_;
  int64_t stride_;
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
  std::vector<float> values_;
};

}  // namespace perigee::test
