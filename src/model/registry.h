#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/causal_lm.h"
#include "model/model_footprint.h"
#include "parallel/planner.h"
#include "parallel/shard.h"
#include "tensor/device.h"

namespace perigee::model {

// A model folder that was opened and checked: configuration and tensors, before any weight is repacked.
// Immutable; the ranks of a process build their parts from one of these, at the same time if they like.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  // Sizes and costs, with the types that the tensors are stored in.
  virtual const ModelFootprint& footprint() const = 0;
  // Union of generation_config.json and config.json, ascending.
  virtual const std::vector<int32_t>& stop_ids() const = 0;

  // What the choice of a step's mode depends on.
  virtual parallel::ModelShape shape() const = 0;

  // The model of one rank, its weights on `device` (opened on the calling thread). progress is called with
  // (bytes done, bytes in all); may be empty. Weights are counted in `ledger` (may be null;
  // outlives the model).
  virtual std::unique_ptr<CausalLm> Build(const parallel::Shard& shard,
                                          const std::function<void(uint64_t, uint64_t)>& progress,
                                          Device device = Device::kCpu,
                                          MemoryLedger* ledger = nullptr) const = 0;
};

// Opens a HuggingFace folder. The architecture named in config.json chooses the model; an unknown one is an
// error that lists those known. Errors name file, key or tensor.
StatusOr<std::unique_ptr<ModelFiles>> OpenModel(const std::string& folder);
// The same with random weights: of a folder only config.json is read, of a named shape nothing. Deterministic
// by seed, on every device.
StatusOr<std::unique_ptr<ModelFiles>> OpenDummyModel(const std::string& folder, uint64_t seed);
StatusOr<std::unique_ptr<ModelFiles>> OpenDummyShape(const std::string& shape, uint64_t seed);

}  // namespace perigee::model
