#pragma once

#include "batch/forward_batch.h"
#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"
#include "kernels/context.h"

namespace perigee::layers {

// What a layer gets besides its rows: the step's metadata and the rank's pools. Lives for one step.
struct StepContext {
  const kernels::KernelContext& kernels;
  const batch::ForwardBatch& batch;
  const cache::PagedKvCache& kv;
  const cache::RecurrentStatePool& states;
};

}  // namespace perigee::layers
