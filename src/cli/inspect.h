#pragma once

#include <string>

#include "base/status.h"

namespace perigee::cli {

// perigee inspect: prints what a model is and costs. Exactly one of the two is not empty.
Status RunInspect(const std::string& folder, const std::string& shape);

}  // namespace perigee::cli
