#pragma once

#include "base/status.h"
#include "cli/flags.h"

namespace perigee::cli {

// perigee serve: loads the model and answers over HTTP until SIGINT or SIGTERM; then lets running requests
// end. A second signal ends the process at once.
Status RunServe(ServeFlags flags);

}  // namespace perigee::cli
