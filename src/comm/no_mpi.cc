#include "base/check.h"
#include "comm/mpi_communicator.h"

namespace perigee::comm {

StatusOr<std::unique_ptr<MpiSession>> MpiSession::Start() {
  return UsageError(
      "this program was built without MPI and cannot be a rank of mpirun; accepted: --tp N without "
      "mpirun, or a build with libopenmpi-dev installed");
}

std::unique_ptr<Communicator> MakeMpiCommunicator(GroupBoard*, std::shared_ptr<ProcessGroup>) {
  PERIGEE_CHECK_MSG(false, "no MPI session can exist");
}

}  // namespace perigee::comm
