#include "comm/group_state.h"

#include "base/check.h"

namespace perigee::comm {

Status GroupState::status() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void GroupState::Break(const Status& reason) {
  PERIGEE_CHECK(!reason.ok());
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  OnBroken();
}

void GroupState::Abort(const Status& reason) {
  Break(reason);
  std::vector<std::weak_ptr<GroupState>> children;
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = reason;
    children.swap(children_);
  }
  for (const std::weak_ptr<GroupState>& weak : children) {
    if (const std::shared_ptr<GroupState> child = weak.lock()) child->Abort(reason);
  }
}

void GroupState::Link(const std::shared_ptr<GroupState>& parent, const std::shared_ptr<GroupState>& child) {
  PERIGEE_CHECK(child->parent_ == nullptr);
  child->parent_ = parent;
  Status aborted;
  {
    const std::lock_guard lock(parent->mutex_);
    aborted = parent->aborted_;
    if (aborted.ok()) {
      std::erase_if(parent->children_, [](const std::weak_ptr<GroupState>& c) { return c.expired(); });
      parent->children_.push_back(child);
    }
  }
  if (!aborted.ok()) child->Abort(aborted);
}

}  // namespace perigee::comm
