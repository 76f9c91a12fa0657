#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/trace.h"

namespace perigee::internal {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  const std::string trace = CurrentTrace();
  std::fprintf(stderr, "perigee: check failed at %s:%d: %s%s%.*s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", static_cast<int>(message.size()), message.data(),
               trace.empty() ? "" : "; in ", trace.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace perigee::internal
