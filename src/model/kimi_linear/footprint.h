#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model/kimi_linear/config.h"
#include "model/model_footprint.h"
#include "tensor/dtype.h"

namespace perigee::model {

// The stored type of a tensor, by its name.
using DTypeOf = std::function<DType(const std::string& name)>;

// What the pools of a rank with this shard hold.
CacheShape KimiLinearCacheShape(const KimiLinearConfig& config, const parallel::Shard& shard);

// Bytes of a rank's weights as KimiLinearModel holds them. On the CPU: products in panels of 16 outputs, in
// BF16 where all their pieces are stored so and else in F32; the key and value weights of MLA twice; the rest
// in F32. On a device: products in BF16, the embedding as stored, the rest in F32.
uint64_t KimiLinearWeightBytes(const KimiLinearConfig& config, const parallel::Shard& shard, Device device,
                               const DTypeOf& dtype_of);

// Room of KimiLinearModel::Forward for any step up to this shape.
void TallyKimiLinear(const KimiLinearConfig& config, const parallel::Shard& shard, const StepShape& step,
                     kernels::WorkspaceTally& tally);

// dtype_of: of every tensor that ExpectedTensors names; a shape without a checkpoint takes all for BF16.
std::unique_ptr<ModelFootprint> MakeKimiLinearFootprint(const KimiLinearConfig& config, DTypeOf dtype_of);

}  // namespace perigee::model
