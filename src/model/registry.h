#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/causal_lm.h"

namespace perigee::model {

struct LoadOptions {
  // Called while weights load with (bytes done, bytes in all); may be empty.
  std::function<void(uint64_t, uint64_t)> progress;
};

struct LoadedModel {
  std::unique_ptr<CausalLm> model;
  int64_t max_context = 0;        // longest sequence that the checkpoint declares
  std::vector<int32_t> stop_ids;  // union of generation_config.json and config.json, ascending
  int64_t vocab_size = 0;
};

// Loads a HuggingFace folder. The architecture named in config.json chooses the model; an unknown one is an
// error that lists those known. Errors name file, key or tensor.
StatusOr<LoadedModel> LoadModel(const std::string& folder, const LoadOptions& options);

}  // namespace perigee::model
