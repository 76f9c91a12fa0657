#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "layers/step_context.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// One layer's mixing over the sequence. Immutable after loading; updates the pools that the step names.
class Attention {
 public:
  virtual ~Attention() = default;

  // x: normed rows [rows, hidden], all rows of the step or this rank's (step.layout), as the layer's layouts
  // ask. y: the branch to add to the residual, of the rows at `chosen` places of x (ascending; absent: all of
  // them), [chosen, hidden]; it may still owe a sum over ranks. States and latents are updated for all rows
  // whatever is chosen.
  virtual Status Forward(const StepContext& step, ConstMatrixF x,
                         std::optional<std::span<const int64_t>> chosen, MatrixF y) const = 0;
};

}  // namespace perigee::layers
