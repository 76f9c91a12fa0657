#include "comm/local_communicator.h"

#include <algorithm>

#include "base/check.h"
#include "comm/arguments.h"

namespace perigee::comm {

LocalCommunicator::LocalCommunicator() : state_(std::make_shared<GroupState>()) {}

Status LocalCommunicator::CopyAs(Collective call, std::span<const float> send, std::span<float> receive) {
  PERIGEE_RETURN_IF_ERROR(state_->status());
  std::copy(send.begin(), send.end(), receive.begin());
  traffic_.Add(call, 0);
  return Status::Ok();
}

Status LocalCommunicator::AllGather(std::span<const float> send, std::span<float> receive,
                                    std::span<const int64_t> counts) {
  CheckAllGather(*this, send, receive, counts);
  return CopyAs(Collective::kAllGather, send, receive);
}

Status LocalCommunicator::ReduceScatter(std::span<const float> send, std::span<float> receive,
                                        std::span<const int64_t> counts) {
  CheckReduceScatter(*this, send, receive, counts);
  return CopyAs(Collective::kReduceScatter, send, receive);
}

Status LocalCommunicator::AllReduce(std::span<float>) {
  return CopyAs(Collective::kAllReduce, {}, {});
}

Status LocalCommunicator::AllToAll(std::span<const float> send, std::span<const int64_t> send_counts,
                                   std::span<float> receive, std::span<const int64_t> receive_counts) {
  CheckAllToAll(*this, send, send_counts, receive, receive_counts);
  PERIGEE_CHECK(send.size() == receive.size());
  return CopyAs(Collective::kAllToAll, send, receive);
}

Status LocalCommunicator::Broadcast(std::span<float>, int root) {
  CheckBroadcast(*this, root);
  return CopyAs(Collective::kBroadcast, {}, {});
}

StatusOr<std::unique_ptr<Communicator>> LocalCommunicator::Split(int, int) {
  PERIGEE_RETURN_IF_ERROR(state_->status());
  auto group = std::make_unique<LocalCommunicator>();
  GroupState::Link(state_, group->state_);
  return StatusOr<std::unique_ptr<Communicator>>(std::move(group));
}

void LocalCommunicator::Abort(const Status& reason) {
  state_->Abort(reason);
}

}  // namespace perigee::comm
