#pragma once

#include <string>

namespace perigee {

// Names what the current thread is doing, for the report of a failed check. Scopes nest; names must be string
// literals.
class TraceScope {
 public:
  explicit TraceScope(const char* name, long index = -1);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const char* name_;
  long index_;
  TraceScope* outer_;
  friend std::string CurrentTrace();
};

// "rank 0 > step > layer 3", empty when nothing was entered on this thread.
std::string CurrentTrace();

// The rank this thread works for, or -1 (a label for messages only; nothing may decide by it).
void SetTraceRank(int rank);

}  // namespace perigee
