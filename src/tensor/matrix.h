#pragma once

#include <cstdint>

#include "base/check.h"

namespace perigee {

// A view of rows x cols elements whose rows lie `stride` elements apart. Owns nothing; kernels take and give
// these.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  Matrix() = default;
  Matrix(T* d, int64_t r, int64_t c) : Matrix(d, r, c, c) {}
  Matrix(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), cols(c), stride(s) {}
  // A view of mutable elements serves where constant ones are wanted.
  template <typename U>
  requires(!__is_same(U, T) && __is_same(const U, T)) Matrix(const Matrix<U>& m)
      : Matrix(m.data, m.rows, m.cols, m.stride) {}

  T* Row(int64_t r) const {
    PERIGEE_DCHECK(r >= 0 && r < rows);
    return data + r * stride;
  }
  Matrix Rows(int64_t begin, int64_t count) const {
    PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
    return {data + begin * stride, count, cols, stride};
  }
  Matrix Cols(int64_t begin, int64_t count) const {
    PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {data + begin, rows, count, stride};
  }
};

using MatrixF = Matrix<float>;
using ConstMatrixF = Matrix<const float>;

}  // namespace perigee
