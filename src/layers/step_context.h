#pragma once

#include <cstdint>
#include <span>

#include "batch/forward_batch.h"
#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"
#include "kernels/context.h"
#include "parallel/layer_communicator.h"
#include "parallel/step_layout.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// Where the residual stream rests between layers: [all rows of the step, hidden] each.
struct StreamRoom {
  MatrixF branch;
  MatrixF residual;
};

// What a layer gets besides its rows: the step's metadata, the rank's pools and rows. Lives for one step.
struct StepContext {
  const kernels::KernelContext& kernels;
  const batch::ForwardBatch& batch;
  const cache::PagedKvCache& kv;
  const cache::RecurrentStatePool& states;
  const parallel::StepLayout& layout;
  parallel::LayerCommunicator& communicator;
  const StreamRoom& stream_room;
};

}  // namespace perigee::layers
