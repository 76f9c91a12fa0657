#include "server/request_record.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace perigee::server {

RequestRecord::RequestRecord(std::shared_ptr<Metrics> metrics, std::string name, Clock::time_point arrived)
    : metrics_(std::move(metrics)), name_(std::move(name)), arrived_(arrived) {}

RequestRecord::~RequestRecord() {
  End(RequestEnd::kCancelled);
}

void RequestRecord::Finish() {
  metrics_->end_to_end.Observe(Clock::now() - arrived_);
  End(RequestEnd::kFinished);
}

void RequestRecord::Fail(const ApiError& error) {
  LogApiError(name_, error);
  End(error.status >= 500 ? RequestEnd::kFailed : RequestEnd::kRefused);
}

void RequestRecord::End(RequestEnd end) {
  if (!ended_.exchange(true)) metrics_->CountEnd(end);
}

void LogApiError(std::string_view name, const ApiError& error) {
  constexpr size_t kMaxBytes = 400;
  const bool plain = error.message.size() <= kMaxBytes &&
                     std::all_of(error.message.begin(), error.message.end(), [](char c) { return c >= ' '; });
  Log(error.status >= 500 ? LogLevel::kWarning : LogLevel::kInfo,
      StrCat(name, ": ", error.status, ": ", plain ? error.message : Quoted(error.message, kMaxBytes)));
}

}  // namespace perigee::server
