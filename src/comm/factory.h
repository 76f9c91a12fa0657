#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace perigee::comm {

// A world of `size` ranks inside this process, in rank order; each is to be handed to the thread of its rank.
// transport: "local" (size 1) or "thread". Errors name the transport and what is accepted.
StatusOr<std::vector<std::unique_ptr<Communicator>>> MakeInProcessWorld(std::string_view transport, int size);

}  // namespace perigee::comm
