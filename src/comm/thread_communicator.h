#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace perigee::comm {

class ThreadGroup;

// Ranks that are threads of one process. In a collective every rank shows its buffers, waits until all have,
// and then moves its part straight between the ranks' memory; it returns when nobody touches its buffers any
// more. A collective happens for all ranks or, when the group breaks first, for none. A buffer may be freed
// as soon as the call has returned, with an error too.
class ThreadCommunicator final : public Communicator {
 public:
  // The ranks of a new group, each to be handed to its thread. size >= 1.
  static std::vector<std::unique_ptr<Communicator>> CreateGroup(int size);

  ~ThreadCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
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
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank);

  // Waits until all ranks have filled their slots for the same call.
  Status Meet(std::string_view call);
  // Waits until all ranks are done with each other's memory.
  void Part();
  void CheckSameCounts(std::string_view call, std::span<const int64_t> counts) const;
  // Adds elements [begin, end) of the ranks' send buffers and writes the sums to every output, at its start.
  void SumOfRanks(int64_t begin, int64_t end, std::span<float* const> outputs) const;

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
  const int size_;
  Traffic traffic_;
};

}  // namespace perigee::comm
