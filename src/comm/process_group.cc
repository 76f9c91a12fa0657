#include "comm/process_group.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace perigee::comm {

ProcessGroup::ProcessGroup(int tag, std::vector<int> world_ranks, int rank)
    : tag_(tag), world_ranks_(std::move(world_ranks)), rank_(rank) {}

// Called by one thread, the mesh's: the two values need no common lock.
void ProcessGroup::PeerLeft(int world_rank, uint64_t exchanges) {
  if (std::ranges::find(world_ranks_, world_rank) == world_ranks_.end()) return;
  if (exchanges >= first_impossible_.load()) return;
  first_to_leave_ = world_rank;
  first_impossible_ = exchanges;
}

Status ProcessGroup::Check(uint64_t exchange) const {
  if (broken_.load()) return status();
  if (exchange < first_impossible_.load()) return Status::Ok();
  return InternalError(StrCat("rank ", first_to_leave_.load(), " left its group of ", size(), " ranks"));
}

}  // namespace perigee::comm
