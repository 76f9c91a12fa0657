#include "scheduler/snapshot_policy.h"

#include <algorithm>
#include <initializer_list>

#include "cache/paged_kv_cache.h"

namespace perigee::scheduler {

int64_t SnapshotPoints::After(int64_t position) const {
  const int64_t last = (prompt_size - 1) / cache::kBlockTokens * cache::kBlockTokens;
  int64_t next = prompt_size;
  for (const int64_t point : {last, branch, (position / interval + 1) * interval}) {
    if (point > position && point < prompt_size) next = std::min(next, point);
  }
  return next;
}

}  // namespace perigee::scheduler
