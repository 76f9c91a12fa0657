#include "scheduler/chunking.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "cache/paged_kv_cache.h"

namespace perigee::scheduler {

int64_t CutGrid(int64_t chunk_size) {
  PERIGEE_CHECK(chunk_size >= 1);
  return chunk_size % cache::kBlockTokens == 0 ? cache::kBlockTokens : chunk_size;
}

int64_t ChunkRows(int64_t computed, int64_t prompt_size, int64_t budget, int64_t grid) {
  PERIGEE_CHECK(computed >= 0 && computed < prompt_size && computed % grid == 0);
  const int64_t remaining = prompt_size - computed;
  if (remaining <= budget) return remaining;
  return std::max<int64_t>(budget, 0) / grid * grid;
}

std::vector<int64_t> ShareRows(std::span<const PrefillWish> wishes, PrefillTurn turn, int64_t budget,
                               int64_t chunk_size) {
  std::vector<size_t> order(wishes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (turn == PrefillTurn::kShortest) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return wishes[a].prompt_size - wishes[a].computed < wishes[b].prompt_size - wishes[b].computed;
    });
  }
  const int64_t grid = CutGrid(chunk_size);
  std::vector<int64_t> rows(wishes.size());
  for (const size_t i : order) {
    rows[i] = ChunkRows(wishes[i].computed, wishes[i].stop, std::min(budget, chunk_size), grid);
    budget -= rows[i];
  }
  return rows;
}

}  // namespace perigee::scheduler
