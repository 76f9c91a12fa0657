#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/group_board.h"
#include "comm/process_group.h"

// Everything that calls MPI. no_mpi.cc takes the place of mpi_communicator.cc where MPI is absent.
namespace perigee::comm {

// MPI from initialisation to finalisation, once a process. MPI is told that threads call it one at a time;
// the callers see to that.
class MpiSession {
 public:
  // Collective over the processes that mpirun started.
  static StatusOr<std::unique_ptr<MpiSession>> Start();
  // Collective, unless abandoned.
  virtual ~MpiSession() = default;
  // Others are gone: MPI is not finalised, which would wait for them.
  virtual void Abandon() = 0;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What each rank gives, to all. Collective; an error when some rank does not come before the deadline.
  virtual StatusOr<std::vector<std::vector<std::byte>>> AllGather(
      std::span<const std::byte> mine, std::chrono::steady_clock::time_point deadline) = 0;
};

// This process's rank of a group. Tensors go over MPI, all else through `board`, which outlives it. A
// collective waits without blocking in MPI, so that the group can be aborted at any moment. MPI cannot take
// back what was begun: rows pass through buffers of the communicator's own, and those of a collective that
// was aborted are kept for good.
std::unique_ptr<Communicator> MakeMpiCommunicator(GroupBoard* board, std::shared_ptr<ProcessGroup> group);

}  // namespace perigee::comm
