#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "comm/group_state.h"

namespace perigee::comm {

// One process's view of a group whose ranks are processes. Any thread may call anything.
class ProcessGroup final : public GroupState {
 public:
  // world_ranks[i]: the process that is the group's rank i. tag: tells the groups of a process apart, and is
  // the same on all of the group's ranks.
  ProcessGroup(int tag, std::vector<int> world_ranks, int rank);

  int tag() const { return tag_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  // In order of the group's ranks.
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // That process has left after so many exchanges: those are still complete, later ones cannot be. Processes
  // that are not of the group are ignored.
  void PeerLeft(int world_rank, uint64_t exchanges);

  // Cheap: true while Check would be ok.
  bool Usable(uint64_t exchange) const { return !broken_.load() && exchange < first_impossible_.load(); }
  // Ok, or why that exchange (counted from 0) will not complete.
  Status Check(uint64_t exchange) const;

 private:
  void OnBroken() override { broken_ = true; }

  const int tag_;
  const std::vector<int> world_ranks_;
  const int rank_;
  std::atomic<bool> broken_{false};
  std::atomic<uint64_t> first_impossible_{std::numeric_limits<uint64_t>::max()};
  std::atomic<int> first_to_leave_{-1};  // world rank
};

}  // namespace perigee::comm
