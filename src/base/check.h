#pragma once

#include <string>
#include <string_view>

namespace perigee::internal {
// Prints file, line, condition, the thread's rank and scope trace (base/trace.h), and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view message);
}  // namespace perigee::internal

// An invariant that only a defect of ours can break. Stays on in release builds. The message is evaluated on
// failure only.
#define PERIGEE_CHECK(cond) PERIGEE_CHECK_MSG(cond, "")
#define PERIGEE_CHECK_MSG(cond, message)                                      \
  do {                                                                        \
    if (!(cond)) [[unlikely]]                                                 \
      ::perigee::internal::CheckFailed(__FILE__, __LINE__, #cond, (message)); \
  } while (false)

// The same for inner loops: debug and sanitizer builds only.
#ifdef NDEBUG
#define PERIGEE_DCHECK(cond) \
  do {                       \
  } while (false && (cond))
#else
#define PERIGEE_DCHECK(cond) PERIGEE_CHECK(cond)
#endif
