#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace perigee {

// A view of rows x cols elements whose rows lie `stride` elements apart. Owns nothing.
template <typename T>
struct TypedMatrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  TypedMatrix() = default;
  TypedMatrix(T* d, int64_t r, int64_t c) : TypedMatrix(d, r, c, c) {}
  TypedMatrix(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), cols(c), stride(s) {}
  // A view of mutable elements serves where constant ones are wanted.
  template <typename U>
  requires(!__is_same(U, T) && __is_same(const U, T)) TypedMatrix(const TypedMatrix<U>& m)
      : TypedMatrix(m.data, m.rows, m.cols, m.stride) {}

  T* Row(int64_t r) const {
    PERIGEE_DCHECK(r >= 0 && r < rows);
    return data + r * stride;
  }
  TypedMatrix Rows(int64_t begin, int64_t count) const {
    PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
    return {data + begin * stride, count, cols, stride};
  }
  TypedMatrix Cols(int64_t begin, int64_t count) const {
    PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {data + begin, rows, count, stride};
  }
};

using MatrixF = TypedMatrix<float>;
using ConstMatrixF = TypedMatrix<const float>;

// The same view with the element type as a value: what kernels take and give, on the memory of their
// context's device. Byte is std::byte or const std::byte.
template <typename Byte>
struct AnyMatrix {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements

  static constexpr bool kConst = __is_same(Byte, const std::byte);
  template <typename T>
  using Element = std::conditional_t<kConst, const T, T>;

  AnyMatrix() = default;
  AnyMatrix(Byte* d, DType t, int64_t r, int64_t c, int64_t s)
      : data(d), dtype(t), rows(r), cols(c), stride(s) {}
  template <typename T>
  requires(kConst || !std::is_const_v<T>) AnyMatrix(const TypedMatrix<T>& m)
      : AnyMatrix(reinterpret_cast<Byte*>(m.data), kDTypeOf<T>, m.rows, m.cols, m.stride) {}
  template <typename T>
  requires(kConst || !std::is_const_v<T>) AnyMatrix(T* d, int64_t r, int64_t c)
      : AnyMatrix(TypedMatrix<T>(d, r, c)) {}
  template <typename T>
  requires(kConst || !std::is_const_v<T>) AnyMatrix(T* d, int64_t r, int64_t c, int64_t s)
      : AnyMatrix(TypedMatrix<T>(d, r, c, s)) {}
  // A view of mutable elements serves where constant ones are wanted.
  template <typename Other>
  requires(kConst&& __is_same(Other, std::byte)) AnyMatrix(const AnyMatrix<Other>& m)
      : AnyMatrix(m.data, m.dtype, m.rows, m.cols, m.stride) {}

  // The elements must be of that type.
  template <typename T>
  TypedMatrix<Element<T>> As() const {
    PERIGEE_CHECK(dtype == kDTypeOf<T>);
    return {reinterpret_cast<Element<T>*>(data), rows, cols, stride};
  }
  AnyMatrix Rows(int64_t begin, int64_t count) const {
    PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
    return {data + begin * stride * DTypeBytes(dtype), dtype, count, cols, stride};
  }
  AnyMatrix Cols(int64_t begin, int64_t count) const {
    PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {data + begin * DTypeBytes(dtype), dtype, rows, count, stride};
  }
};

using Matrix = AnyMatrix<std::byte>;
using ConstMatrix = AnyMatrix<const std::byte>;

}  // namespace perigee
