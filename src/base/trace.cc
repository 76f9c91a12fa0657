#include "base/trace.h"

#include <vector>

#include "base/strings.h"

namespace perigee {
namespace {
thread_local TraceScope* innermost = nullptr;
thread_local int trace_rank = -1;
}  // namespace

TraceScope::TraceScope(const char* name, long index) : name_(name), index_(index), outer_(innermost) {
  innermost = this;
}

TraceScope::~TraceScope() {
  innermost = outer_;
}

std::string CurrentTrace() {
  std::vector<std::string> parts;
  for (const TraceScope* s = innermost; s != nullptr; s = s->outer_) {
    parts.insert(parts.begin(), s->index_ < 0 ? std::string(s->name_) : StrCat(s->name_, " ", s->index_));
  }
  if (trace_rank >= 0) parts.insert(parts.begin(), StrCat("rank ", trace_rank));
  return StrJoin(parts, " > ");
}

void SetTraceRank(int rank) {
  trace_rank = rank;
}

}  // namespace perigee
