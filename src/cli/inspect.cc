#include "cli/inspect.h"

#include <cstdio>

#include "engine/model_summary.h"

namespace perigee::cli {

Status RunInspect(const std::string& folder, const std::string& shape) {
  PERIGEE_ASSIGN_OR_RETURN(const std::string summary,
                           shape.empty() ? engine::SummarizeFolder(folder) : engine::SummarizeShape(shape));
  if (std::fputs(summary.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    return InternalError("cannot write to standard output");
  return Status::Ok();
}

}  // namespace perigee::cli
