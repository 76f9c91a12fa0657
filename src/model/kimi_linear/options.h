#pragma once

#include "layers/feed_forward.h"
#include "layers/kda_attention.h"
#include "layers/mla_attention.h"
#include "model/kimi_linear/config.h"

// The configuration as the layers want it.
namespace perigee::model {

layers::KdaOptions KdaOf(const KimiLinearConfig& config, int64_t state_layer);
layers::MlaOptions MlaOf(const KimiLinearConfig& config, int64_t kv_layer);
layers::MoeOptions MoeOf(const KimiLinearConfig& config);

}  // namespace perigee::model
