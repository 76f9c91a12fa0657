#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/queue.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/group_board.h"
#include "comm/liveness.h"
#include "comm/mpi_communicator.h"
#include "comm/socket_mesh.h"

namespace perigee::comm {

// This process as one rank among those that mpirun started. Tensors go over MPI (world()), messages and signs
// of life over sockets of our own, so that the loss of a rank is seen at once, whatever the others are doing.
// Once a rank is lost, or somebody calls Fail, all collectives of all ranks end with the reason and the ranks
// are of no more use. One object a process; it outlives every communicator.
class ProcessRanks final : private MeshListener {
 public:
  // Collective. `watchdog`: how long a rank may be silent, or a step without progress.
  static StatusOr<std::unique_ptr<ProcessRanks>> Start(std::chrono::milliseconds watchdog);
  // Says goodbye. Collective while status() is ok.
  ~ProcessRanks() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // How many of the ranks are on this host.
  int ranks_on_host() const;
  // All ranks, in order. One thread at a time calls it and the groups split from it.
  Communicator& world() { return *world_; }

  // What every rank gives, in order; for agreeing on things before the first step. Collective.
  StatusOr<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine);

  // A message to all others, which they get from Receive in order. Rank 0 only; any thread.
  void Tell(std::span<const std::byte> message);
  // Waits for the next message of rank 0; nothing once it has said goodbye or the ranks are lost.
  std::optional<std::vector<std::byte>> Receive();

  // Marks a step for the watchdog: inside, this rank computes, which makes `work` grow, or waits for others.
  void BeginStep(const std::atomic<uint64_t>* work) { board_.BeginStep(work); }
  void EndStep() { board_.EndStep(); }

  // Ok, or why the ranks are of no more use.
  Status status() const;
  // The ranks are of no more use: all of them learn why. Any thread.
  void Fail(const Status& reason);
  // Called once, on some thread, when the ranks are lost; at once when they are already. Must not block, and
  // stays for good.
  void OnFailure(std::function<void(const Status&)> callback);
  // Waits until rank 0 has closed its connection, or `limit` has passed.
  void AwaitEndOfRankZero(std::chrono::milliseconds limit);

 private:
  enum Message : uint8_t;

  ProcessRanks(std::unique_ptr<MpiSession> session, std::chrono::milliseconds watchdog);
  Status Connect(std::chrono::milliseconds watchdog);

  void OnMessage(int from, uint8_t kind, std::span<const std::byte> payload) override;
  void OnClosed(int rank) override;
  void OnTick() override;
  // Takes the reason if it is the first.
  void Lose(const Status& reason, bool tell_others);
  // "rank 2 on node7"
  std::string NameOf(int rank) const;

  const int rank_;  // the mesh's thread asks for it while the session ends
  const int size_;
  std::unique_ptr<MpiSession> session_;
  std::vector<std::string> hosts_;  // HostIdentity, by rank
  GroupBoard board_;
  std::shared_ptr<ProcessGroup> group_;  // of world_
  std::unique_ptr<Communicator> world_;
  Liveness liveness_;  // the mesh's thread
  BlockingQueue<std::vector<std::byte>> messages_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Status status_;
  std::vector<std::function<void(const Status&)>> on_failure_;
  std::vector<bool> gone_;  // has said goodbye or closed
  bool leaving_ = false;
  std::vector<std::deque<std::vector<std::byte>>> gathered_;  // by rank, in order of the calls

  std::unique_ptr<SocketMesh> mesh_;  // last: its thread uses the rest
};

}  // namespace perigee::comm
