#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/sockets.h"

namespace perigee::comm {

// What the ranks of one start share and nobody else knows: the first half is shown by the rank that connects,
// the second by the one that accepts. It keeps strangers out of the mesh; it is no protection against
// someone who reads the network.
using MeshToken = std::array<std::byte, 64>;
MeshToken RandomMeshToken();

std::vector<std::byte> EncodeEndpoint(const Endpoint& endpoint);
StatusOr<Endpoint> DecodeEndpoint(std::span<const std::byte> bytes);

// Connects this rank with every other: it calls those below it and is called by those above. endpoints[r] is
// rank r's, the own one that of `listener`, which is closed in the end. Connections that do not show the
// token are dropped and hold nobody up. Returns the sockets by rank, the own one not open. An error names the
// ranks that are missing at the deadline.
StatusOr<std::vector<UniqueFd>> ConnectMesh(int rank, std::span<const Endpoint> endpoints,
                                            const MeshToken& token, Listener listener,
                                            std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::comm
