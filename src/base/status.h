#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace perigee {

// What kind of failure the caller or the environment caused. HTTP and exit codes are derived from it in one
// place each.
enum class StatusCode {
  kOk,
  kInvalidArgument,    // the request, flag or file says something we do not accept
  kUsage,              // a flag of the command line is not accepted, alone or with others or with the model
  kNotFound,           // a named thing (file, tensor, model) does not exist
  kResourceExhausted,  // correct, but does not fit here and now
  kUnavailable,        // not ready, shutting down
  kCancelled,          // the caller went away
  kInternal,           // the environment failed under us (I/O error, lost rank)
};

// A failure that a caller may cause or handle: what, where and which value, in one line for a person.
// Broken invariants are not a Status: they CHECK.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    PERIGEE_CHECK(code != StatusCode::kOk);
  }
  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status UsageError(std::string m) {
  return {StatusCode::kUsage, std::move(m)};
}
inline Status NotFound(std::string m) {
  return {StatusCode::kNotFound, std::move(m)};
}
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status Unavailable(std::string m) {
  return {StatusCode::kUnavailable, std::move(m)};
}
inline Status Cancelled(std::string m) {
  return {StatusCode::kCancelled, std::move(m)};
}
inline Status InternalError(std::string m) {
  return {StatusCode::kInternal, std::move(m)};
}

// A value or the reason why there is none. Reading the value of a failure is a broken invariant.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status failure) : status_(std::move(failure)) { PERIGEE_CHECK(!status_.ok()); }
  StatusOr(T result) : value_(std::move(result)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & {
    PERIGEE_CHECK_MSG(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    PERIGEE_CHECK_MSG(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    PERIGEE_CHECK_MSG(ok(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace perigee

// PERIGEE_RETURN_IF_ERROR(expr): leave the function with the Status of `expr` unless it is ok.
#define PERIGEE_RETURN_IF_ERROR(expr)                  \
  do {                                                 \
    ::perigee::Status perigee_status_ = (expr);        \
    if (!perigee_status_.ok()) return perigee_status_; \
  } while (false)

#define PERIGEE_CONCAT_INNER(a, b) a##b
#define PERIGEE_CONCAT(a, b) PERIGEE_CONCAT_INNER(a, b)
// PERIGEE_ASSIGN_OR_RETURN(auto x, Function()): declares or assigns x, or leaves the function with the
// Status.
#define PERIGEE_ASSIGN_OR_RETURN(lhs, expr) \
  PERIGEE_ASSIGN_OR_RETURN_IMPL(PERIGEE_CONCAT(perigee_or_, __LINE__), lhs, expr)
#define PERIGEE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = std::move(tmp).value()
