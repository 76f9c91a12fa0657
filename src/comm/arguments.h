#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace perigee::comm {

// Checks of what one rank passes to a collective, the same for every transport. A violation is a defect: it
// ends the process, naming rank and call.
void CheckAllGather(const Communicator& c, std::span<const float> send, std::span<const float> receive,
                    std::span<const int64_t> counts);
void CheckReduceScatter(const Communicator& c, std::span<const float> send, std::span<const float> receive,
                        std::span<const int64_t> counts);
void CheckAllToAll(const Communicator& c, std::span<const float> send, std::span<const int64_t> send_counts,
                   std::span<const float> receive, std::span<const int64_t> receive_counts);
void CheckBroadcast(const Communicator& c, int root);

// Start of each rank's part in a buffer that holds the parts in rank order, and at the end the total.
int64_t PartOffset(std::span<const int64_t> counts, int rank);

}  // namespace perigee::comm
