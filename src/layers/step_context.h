#pragma once

#include <cstdint>
#include <vector>

#include "batch/forward_batch.h"
#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"
#include "kernels/context.h"
#include "parallel/layer_communicator.h"
#include "parallel/step_layout.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

namespace perigee::layers {

// Where the residual stream rests between layers: [all rows of the step, hidden] each.
struct StreamRoom {
  Matrix branch;
  Matrix residual;
};

// Some rows of a block's input, by place (ascending), and the runs that they form: q_begin counts chosen
// rows.
struct RowChoice {
  std::vector<int64_t> places;
  std::vector<Segment> runs;
  // The same as kernels read them.
  StepSpan<int64_t> index;
  PagedSegments segments;

  int64_t size() const { return static_cast<int64_t>(places.size()); }
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
  PagedSegments segments;        // of all rows of the step
  PagedSegments local_segments;  // of this rank's rows (layout.local_spans)
};

}  // namespace perigee::layers
