#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perigee::scheduler {

// Where a prompt may be cut: at absolute multiples of this. 64, the grid on which KDA prefill gives the same
// bits however the prompt is cut, when the chunk size is a multiple of 64; otherwise the chunk size itself,
// so that a sequence is always cut into the same pieces whoever its neighbours are.
int64_t CutGrid(int64_t chunk_size);

// How many of the `prompt_size - computed` remaining prompt tokens go into a step that has room for `budget`
// rows: all, or up to the last cut point that fits, or none. `computed` lies on the grid.
int64_t ChunkRows(int64_t computed, int64_t prompt_size, int64_t budget, int64_t grid);

// An unfinished prompt that wants rows in a step.
struct PrefillWish {
  int64_t computed = 0;  // tokens that are in the caches
  int64_t prompt_size = 0;
  int64_t stop = 0;  // where its next piece has to end, if not before: on the grid, or prompt_size
};

// Who goes first when several prompts share a step.
enum class PrefillTurn {
  kOldest,    // in order of arrival
  kShortest,  // those that have the least left; among equals in order of arrival
};

// The rows that each of `wishes` (oldest first) gets in a step of `budget` rows; a prompt gets at most
// `chunk_size`.
std::vector<int64_t> ShareRows(std::span<const PrefillWish> wishes, PrefillTurn turn, int64_t budget,
                               int64_t chunk_size);

}  // namespace perigee::scheduler
