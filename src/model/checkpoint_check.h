#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/safetensors.h"

namespace perigee::model {

// How far a stored shape may differ from the expected one.
enum class ShapeRule {
  kExact,
  kWithoutOnes,   // dimensions of 1 do not count: [n, 1, w] and [n, w] are the same
  kElementCount,  // vectors that converters fold: any shape with as many elements
};

// A tensor that a model needs: exact name and shape ([out, in]).
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  ShapeRule rule = ShapeRule::kExact;

  int64_t NumElements() const;
};

// Compares what a folder holds with what the model needs: every expected tensor present in an accepted shape,
// and nothing else but rotary_emb buffers, which are leftovers. One error names file and tensor of the first
// problem (missing before wrong shape before unexpected) and counts the rest.
Status CheckCheckpoint(const Checkpoint& checkpoint, std::span<const ExpectedTensor> expected);

}  // namespace perigee::model
