#pragma once

#include "base/status.h"
#include "engine/engine.h"

namespace perigee::engine {

// Whether a request can be served: see Engine::Submit. Errors are kInvalidArgument and say the values in the
// caller's terms.
Status CheckRequest(const Request& request, const ModelInfo& model);

}  // namespace perigee::engine
