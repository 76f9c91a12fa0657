#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace perigee {

enum class DType : uint8_t { kF32, kF16, kBF16 };

// A stored BF16 value.
struct BFloat16 {
  uint16_t bits;
};

// The DType of elements of a C++ type, const or not.
template <typename T>
inline constexpr DType kDTypeOf = [] {
  using U = std::remove_const_t<T>;
  static_assert(std::is_same_v<U, float> || std::is_same_v<U, BFloat16>);
  return std::is_same_v<U, float> ? DType::kF32 : DType::kBF16;
}();

constexpr int64_t DTypeBytes(DType t) {
  return t == DType::kF32 ? 4 : 2;
}
// The safetensors spelling: "F32", "F16", "BF16".
std::string_view DTypeName(DType t);
std::optional<DType> ParseDType(std::string_view safetensors_name);

// Exact widening of one stored value.
float HalfToFloat(uint16_t bits);
inline float BFloat16ToFloat(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}
// Round to nearest even; NaN stays NaN.
uint16_t FloatToBFloat16(float v);

}  // namespace perigee
