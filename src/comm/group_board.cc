#include "comm/group_board.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "base/check.h"

namespace perigee::comm {

std::vector<std::byte> EncodeFailure(int tag, const Status& failure) {
  ByteWriter out;
  out.Put(int32_t{tag});
  out.Put(static_cast<uint8_t>(failure.code()));
  out.PutText(failure.message());
  return out.Take();
}

bool DecodeFailure(std::span<const std::byte> bytes, int* tag, Status* failure) {
  ByteReader in(bytes);
  *tag = in.Get<int32_t>();
  const auto code = static_cast<StatusCode>(in.Get<uint8_t>());
  std::string message = in.GetText();
  if (!in.ok() || in.remaining() != 0 || code <= StatusCode::kOk || code > StatusCode::kInternal)
    return false;
  *failure = Status(code, std::move(message));
  return true;
}

int GroupBoard::FreshTag() const {
  const std::lock_guard lock(mutex_);
  return fresh_tag_;
}

void GroupBoard::Add(const std::shared_ptr<ProcessGroup>& group) {
  Early early;
  {
    const std::lock_guard lock(mutex_);
    PERIGEE_CHECK(group->tag() >= fresh_tag_);
    fresh_tag_ = group->tag() + 1;
    groups_[group->tag()] = group;
    if (const auto found = early_.find(group->tag()); found != early_.end()) early = std::move(found->second);
    // Groups of lower tags were made by others alone.
    early_.erase(early_.begin(), early_.lower_bound(fresh_tag_));
  }
  for (const auto& [rank, exchanges] : early.leaves) group->PeerLeft(rank, exchanges);
  if (!early.abort.ok()) group->Abort(early.abort);
}

void GroupBoard::Leave(const ProcessGroup& group, uint64_t exchanges) {
  {
    const std::lock_guard lock(mutex_);
    groups_.erase(group.tag());
  }
  ByteWriter out;
  out.Put(int32_t{group.tag()});
  out.Put(exchanges);
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank()) send_leave_(group.world_ranks()[static_cast<size_t>(r)], out.bytes());
  }
}

void GroupBoard::Abort(ProcessGroup& group, const Status& reason) {
  group.Abort(reason);
  const std::vector<std::byte> message = EncodeFailure(group.tag(), reason);
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank()) send_abort_(group.world_ranks()[static_cast<size_t>(r)], message);
  }
}

bool GroupBoard::OnLeave(int from, std::span<const std::byte> payload) {
  ByteReader in(payload);
  const auto tag = in.Get<int32_t>();
  const auto exchanges = in.Get<uint64_t>();
  if (!in.ok() || in.remaining() != 0) return false;
  const auto group = FindOrKeep(tag, [&](Early& early) { early.leaves.emplace_back(from, exchanges); });
  if (group != nullptr) group->PeerLeft(from, exchanges);
  return true;
}

bool GroupBoard::OnAbort(std::span<const std::byte> payload) {
  int tag = 0;
  Status reason;
  if (!DecodeFailure(payload, &tag, &reason)) return false;
  const auto group = FindOrKeep(tag, [&](Early& early) {
    if (early.abort.ok()) early.abort = reason;
  });
  if (group != nullptr) group->Abort(reason);
  return true;
}

std::shared_ptr<ProcessGroup> GroupBoard::FindOrKeep(int tag, const std::function<void(Early&)>& note) {
  const std::lock_guard lock(mutex_);
  if (const auto found = groups_.find(tag); found != groups_.end()) return found->second.lock();
  if (tag >= fresh_tag_) note(early_[tag]);
  return nullptr;
}

void GroupBoard::BeginStep(const std::atomic<uint64_t>* work) {
  const std::lock_guard lock(step_mutex_);
  work_ = work;
}

Pulse GroupBoard::pulse() const {
  Pulse pulse{.collectives = collectives_.load()};
  const std::lock_guard lock(step_mutex_);
  if (work_ == nullptr) return pulse;
  pulse.activity = waiting_.load() ? Activity::kWaiting : Activity::kComputing;
  pulse.work = work_->load();
  return pulse;
}

}  // namespace perigee::comm
