#include "scheduler/chunking.h"

#include <algorithm>

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

}  // namespace perigee::scheduler
