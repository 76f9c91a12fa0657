#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace perigee::comm {

// Whether a group can still be used, and the groups that were split from it. Shared by the group's ranks of
// this process; any thread may call anything.
class GroupState {
 public:
  GroupState() = default;
  virtual ~GroupState() = default;
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  // Ok, or why the group was broken first.
  Status status() const;
  // Breaks this group alone.
  void Break(const Status& reason);
  // Breaks this group and all that were or will be split from it.
  void Abort(const Status& reason);

  // Makes `child` a group that was split from `parent`. Once for a child, before it is used.
  static void Link(const std::shared_ptr<GroupState>& parent, const std::shared_ptr<GroupState>& child);

 private:
  // Called once, when status() already tells the reason.
  virtual void OnBroken() {}

  mutable std::mutex mutex_;
  Status broken_;
  Status aborted_;
  std::vector<std::weak_ptr<GroupState>> children_;
  // Keeps the way down from an aborted group to its grandchildren.
  std::shared_ptr<GroupState> parent_;
};

}  // namespace perigee::comm
