#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "layers/weight_source.h"
#include "model/kimi_linear/config.h"

namespace perigee::model {

// Random weights of the model's shape, for measuring without a checkpoint: every product keeps the variance
// of its input and branches add a quarter of it, so that activations stay finite at any depth; exp(A_log)
// lies in 1..16 and softplus(dt_bias) in 0.001..0.1, as the model is initialised; the router's biases are
// small against the spread of its scores, so that all experts are chosen. The same seed gives the same
// weights on every device.
std::map<std::string, layers::DrawnTensor> DrawKimiLinear(const KimiLinearConfig& config, uint64_t seed);

}  // namespace perigee::model
