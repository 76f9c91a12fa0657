#pragma once

#include "kernels/moe/moe_sm90.h"

// The launches of MoeForward. Used by moe_sm90.cc only.
namespace perigee::kernels::cuda {

// Up to 256 entries (pairs of a row and an expert) of one expert that one column of tiles takes.
struct MoeTile {
  int32_t expert;
  int32_t first;  // entry
  int32_t count;
  int32_t blocks;  // of 16 entries that the tile computes: ceil(count / 16)
};

// Arrays of one call in the workspace. An entry's place orders entries by expert.
struct MoePlan {
  int32_t* counts = nullptr;     // [held]; how many entries each expert has
  int32_t* next = nullptr;       // [held]: next free place of each expert
  int32_t* num_tiles = nullptr;  // [1]
  MoeTile* tiles = nullptr;      // [held + entries / 256 + 1]
  int32_t* place = nullptr;  // [rows, top_k + 1]: place of each entry, or -1; the last is the shared expert's
  int32_t* row_of = nullptr;      // [entries]: row of the entry at a place
  __nv_bfloat16* rows = nullptr;  // [entries, hidden]: gathered rows, later the experts' outputs
  __nv_bfloat16* act = nullptr;   // [entries, width]
};

// Rows that are streamed: where a call is so short that the tiles' gather costs more than their better use of
// memory gives back. At most 8, the columns of the product that streams.
inline constexpr int64_t kMoeSmallRows = 8;

// Up to kMoeSmallRows rows: y, by streaming weights. Of the plan only `act` is used.
cudaError_t MoeStream(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream);

// Any number of rows, in order: places, tiles and the rows gathered by place; act = silu(gate) * up and then
// the outputs, over plan.rows; y from the outputs of the entries.
cudaError_t MoePlanTiles(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream);
cudaError_t MoeTiles(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream);
cudaError_t MoeCombine(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream);

}  // namespace perigee::kernels::cuda
