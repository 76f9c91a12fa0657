#pragma once

#include "base/status.h"
#include "cli/flags.h"

namespace perigee::cli {

// perigee generate: one answer, streamed to standard output. Ctrl-C cancels it.
Status RunGenerate(GenerateFlags flags);

}  // namespace perigee::cli
