#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/token_layout.h"

namespace perigee::parallel {

// One communication step between two layouts.
enum class Transition : uint8_t {
  kNone,
  kSlice,            // Full -> Cp, every rank keeps its rows; moves nothing
  kAllGather,        // Cp -> Full, in the CP group
  kAllReduceTp,      // adds up over all ranks
  kAllReduceAttnTp,  // adds up over the ranks that hold the same rows
  kReduceScatter,    // Full, pending over all ranks -> Cp: reduce-scatter in the CP group, sum over attn_tp
};
std::string_view TransitionName(Transition t);

// What moves around one block. A layer is an attention block and a feed-forward block.
struct BlockTransitions {
  BlockKind kind = BlockKind::kKda;
  Transition stream = Transition::kNone;   // of (branch, residual), before the block's norm
  Transition input = Transition::kNone;    // of the normed rows
  Transition output = Transition::kNone;   // of the block's result
  Sharding stream_rows = Sharding::kFull;  // rows on which the norm runs
  Sharding input_rows = Sharding::kFull;   // rows that the block takes

  friend bool operator==(const BlockTransitions&, const BlockTransitions&) = default;
};

// The whole stack in one mode.
struct LayoutPlan {
  StepMode mode = StepMode::kDecode;
  bool embedding_by_share = false;  // vocabulary rows by share, then embedding_output
  Transition embedding_output = Transition::kNone;
  Transition entry = Transition::kNone;       // of the embedded rows, before the first layer
  std::vector<BlockTransitions> blocks;       // two a layer
  Transition exit = Transition::kNone;        // of (branch, residual), before the final norm
  Sharding boundary_rows = Sharding::kFull;   // rows of the stream at entry and exit
  Transition final_rows = Transition::kNone;  // of the final norm's output
};

// The layouts that a block wants and gives in a mode.
struct BlockLayouts {
  Sharding stream;     // where its norm runs and where its result is added
  Sharding input;      // rows that it takes
  TokenLayout output;  // of its result
};
BlockLayouts LayoutsOf(BlockKind kind, StepMode mode);

// Walks the stack once and writes one transition per boundary; transitions within groups of one rank vanish.
// attention: the kind of each layer's attention. Pure.
LayoutPlan MakeLayoutPlan(StepMode mode, std::span<const BlockKind> attention, int tp, int attn_cp);

}  // namespace perigee::parallel
