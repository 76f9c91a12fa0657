#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace perigee {

enum class DType : uint8_t { kF32, kF16, kBF16 };

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
