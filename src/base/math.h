#pragma once

#include <concepts>
#include <limits>
#include <optional>

namespace perigee {

template <std::integral T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

template <std::integral T>
constexpr T AlignUp(T a, T multiple) {
  return CeilDiv(a, multiple) * multiple;
}

// The sum or product, or nothing when it does not fit: for sizes that come out of a file or a request.
template <std::unsigned_integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  if (a > std::numeric_limits<T>::max() - b) return std::nullopt;
  return a + b;
}

template <std::unsigned_integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  if (a != 0 && b > std::numeric_limits<T>::max() / a) return std::nullopt;
  return a * b;
}

// First index of part `p` when `n` items are cut into `parts` nearly equal parts (part p is [PartBegin(p),
// PartBegin(p+1))). The cut that every split of a sum uses, so that results do not depend on who owns which
// part.
constexpr long PartBegin(long p, long n, long parts) {
  return p * n / parts;
}

}  // namespace perigee
