#pragma once

#include <cstdint>

namespace perigee::scheduler {

// Where a prompt may be cut: at absolute multiples of this. 64, the grid on which KDA prefill gives the same
// bits however the prompt is cut, when the chunk size is a multiple of 64; otherwise the chunk size itself,
// so that a sequence is always cut into the same pieces whoever its neighbours are.
int64_t CutGrid(int64_t chunk_size);

// How many of the `prompt_size - computed` remaining prompt tokens go into a step that has room for `budget`
// rows: all, or up to the last cut point that fits, or none. `computed` lies on the grid.
int64_t ChunkRows(int64_t computed, int64_t prompt_size, int64_t budget, int64_t grid);

}  // namespace perigee::scheduler
