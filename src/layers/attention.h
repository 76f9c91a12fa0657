#pragma once

#include "base/status.h"
#include "layers/step_context.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// One layer's mixing over the sequence. Immutable after loading; updates the pools that the step names.
class Attention {
 public:
  virtual ~Attention() = default;

  // x: normed rows [rows, hidden], all rows of the step or this rank's (step.layout), as the layer's layouts
  // ask. y: the branch to add to the residual, of the chosen rows of x (null: all of
  // them), [chosen, hidden]; it may still owe a sum over ranks. States and latents are updated for all rows
  // whatever is chosen.
  virtual Status Forward(const StepContext& step, ConstMatrix x, const RowChoice* chosen, Matrix y) const = 0;
};

}  // namespace perigee::layers
