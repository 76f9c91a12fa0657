#include "model/kimi_linear/drawn_weights.h"

#include <cmath>
#include <string_view>

namespace perigee::model {
namespace {

struct Interval {
  double low = 0;
  double high = 0;
};

// Of variance `std`^2 around 0.
Interval Around0(double std) {
  return {-std * std::sqrt(3.0), std * std::sqrt(3.0)};
}

Interval RangeOf(const ExpectedTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("norm.weight")) return {0.8, 1.2};
  if (name.ends_with(".A_log")) return {0, std::log(16.0)};
  // softplus(x) is about exp(x) here.
  if (name.ends_with(".dt_bias")) return {std::log(0.001), std::log(0.1)};
  if (name.ends_with(".e_score_correction_bias")) return {-0.02, 0.02};
  if (name.ends_with("embed_tokens.weight")) return Around0(1);
  if (name.ends_with("conv1d.weight"))
    return Around0(1 / std::sqrt(static_cast<double>(tensor.shape.back())));
  const double kept = 1 / std::sqrt(static_cast<double>(tensor.shape.back()));
  const bool ends_branch =
      name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") || name.ends_with(".w2.weight");
  return Around0(ends_branch ? kept / 2 : kept);
}

// FNV-1a over the name, from the seed.
uint64_t SeedOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

std::map<std::string, layers::DrawnTensor> DrawKimiLinear(const KimiLinearConfig& config, uint64_t seed) {
  std::map<std::string, layers::DrawnTensor> drawn;
  for (const ExpectedTensor& tensor : ExpectedTensors(config)) {
    const Interval range = RangeOf(tensor);
    const bool f32 = tensor.name.ends_with(".A_log") || tensor.name.ends_with(".dt_bias");
    drawn.emplace(tensor.name, layers::DrawnTensor{.shape = tensor.shape,
                                                   .dtype = f32 ? DType::kF32 : DType::kBF16,
                                                   .seed = SeedOf(seed, tensor.name),
                                                   .low = static_cast<float>(range.low),
                                                   .high = static_cast<float>(range.high)});
  }
  return drawn;
}

}  // namespace perigee::model
