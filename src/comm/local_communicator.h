#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/group_state.h"

namespace perigee::comm {

// The group of one rank: nothing is sent, collectives copy.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator();

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllGather(std::span<const float> send, std::span<float> receive,
                   std::span<const int64_t> counts) override;
  Status ReduceScatter(std::span<const float> send, std::span<float> receive,
                       std::span<const int64_t> counts) override;
  Status AllReduce(std::span<float> data) override;
  Status AllToAll(std::span<const float> send, std::span<const int64_t> send_counts, std::span<float> receive,
                  std::span<const int64_t> receive_counts) override;
  Status Broadcast(std::span<float> data, int root) override;
  StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  void Abort(const Status& reason) override;
  const Traffic& traffic() const override { return traffic_; }

 private:
  Status CopyAs(Collective call, std::span<const float> send, std::span<float> receive);

  std::shared_ptr<GroupState> state_;
  Traffic traffic_;
};

}  // namespace perigee::comm
