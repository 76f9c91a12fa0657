#pragma once

#include "layers/step_context.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// One layer's mixing over the sequence. Immutable after loading; updates the pools that the step names.
class Attention {
 public:
  virtual ~Attention() = default;
  // x: normalised rows of the step [rows, hidden]; y [rows, hidden]: the branch to add to the residual.
  virtual void Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const = 0;
};

}  // namespace perigee::layers
