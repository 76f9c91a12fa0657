#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "comm/liveness.h"
#include "comm/process_group.h"

namespace perigee::comm {

// A failure of the group with that tag as a message, and back. False when the bytes are no failure.
std::vector<std::byte> EncodeFailure(int tag, const Status& failure);
bool DecodeFailure(std::span<const std::byte> bytes, int* tag, Status* failure);

// The groups of this process whose other ranks are processes, and what they tell each other apart from
// tensors: that a group was aborted, that a rank has left. Any thread may call anything.
class GroupBoard {
 public:
  using Send = std::function<void(int to, std::span<const std::byte>)>;

  GroupBoard(Send send_leave, Send send_abort)
      : send_leave_(std::move(send_leave)), send_abort_(std::move(send_abort)) {}

  // A tag that no group of this process has had. Ranks that make a group together take the largest of theirs.
  int FreshTag() const;
  // Once a group, before it is used.
  void Add(const std::shared_ptr<ProcessGroup>& group);
  // This rank leaves after so many exchanges, and says so.
  void Leave(const ProcessGroup& group, uint64_t exchanges);
  // Aborts the group (and those split from it) here and on its other ranks.
  void Abort(ProcessGroup& group, const Status& reason);

  // What another rank said; false when it makes no sense.
  bool OnLeave(int from, std::span<const std::byte> payload);
  bool OnAbort(std::span<const std::byte> payload);

  // What this process does, for its pulse.
  void BeginStep(const std::atomic<uint64_t>* work);  // which lives until EndStep
  void EndStep() { BeginStep(nullptr); }
  void EnterExchange() { waiting_ = true; }
  void LeaveExchange() {
    waiting_ = false;
    ++collectives_;
  }
  Pulse pulse() const;

 private:
  // Said of a group that is being made: this rank has not come as far.
  struct Early {
    Status abort;
    std::vector<std::pair<int, uint64_t>> leaves;
  };

  // The group, or null and `note` applied to what is kept for it if it is still to come.
  std::shared_ptr<ProcessGroup> FindOrKeep(int tag, const std::function<void(Early&)>& note);

  const Send send_leave_;
  const Send send_abort_;
  mutable std::mutex mutex_;
  std::map<int, std::weak_ptr<ProcessGroup>> groups_;
  std::map<int, Early> early_;
  int fresh_tag_ = 0;
  mutable std::mutex step_mutex_;
  const std::atomic<uint64_t>* work_ = nullptr;  // guarded by step_mutex_; null between steps
  std::atomic<bool> waiting_{false};
  std::atomic<uint64_t> collectives_{0};
};

}  // namespace perigee::comm
