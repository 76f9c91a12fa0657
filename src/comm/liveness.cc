#include "comm/liveness.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/strings.h"

namespace perigee::comm {
namespace {

constexpr std::chrono::milliseconds kShortestPeriod{20};
constexpr std::chrono::milliseconds kLongestPeriod{1000};
constexpr int kPeriodsInTimeout = 8;

std::string Seconds(std::chrono::milliseconds time) {
  return StrCat(static_cast<double>(time.count()) / 1000, " s (--watchdog-timeout)");
}

}  // namespace

std::chrono::milliseconds Liveness::Period(std::chrono::milliseconds timeout) {
  return std::clamp(timeout / kPeriodsInTimeout, kShortestPeriod, kLongestPeriod);
}

Liveness::Liveness(int rank, int size, std::chrono::milliseconds timeout, Clock::time_point now)
    : rank_(static_cast<size_t>(rank)),
      timeout_(timeout),
      period_(Period(timeout)),
      seen_(static_cast<size_t>(size), Seen{.pulse = {}, .heard = now, .advanced = now}),
      last_check_(now) {}

void Liveness::Observe(int rank, const Pulse& pulse, Clock::time_point now) {
  Seen& seen = seen_[static_cast<size_t>(rank)];
  seen.heard = now;
  const Pulse& last = seen.pulse;
  if (std::tie(pulse.activity, pulse.collectives, pulse.work) !=
      std::tie(last.activity, last.collectives, last.work)) {
    seen.advanced = now;
  }
  seen.pulse = pulse;
}

void Liveness::Forget(int rank) {
  seen_[static_cast<size_t>(rank)].watched = false;
}

std::optional<Liveness::Verdict> Liveness::Check(Clock::time_point now) {
  const bool was_stopped = now - last_check_ > timeout_ / 2;
  last_check_ = now;
  if (was_stopped) {
    for (Seen& seen : seen_) seen.heard = seen.advanced = now;
    return std::nullopt;
  }
  if (auto verdict = Silence(now)) return verdict;
  return Stall(now);
}

// A pulse may be one period old when its sender stops, and this check one period late.
std::optional<Liveness::Verdict> Liveness::Silence(Clock::time_point now) const {
  for (size_t r = 0; r < seen_.size(); ++r) {
    if (r == rank_ || !seen_[r].watched || now - seen_[r].heard <= timeout_ - 2 * period_) continue;
    return Verdict{static_cast<int>(r), StrCat("nothing was heard of rank ", r, " for ", Seconds(timeout_),
                                               ": its process is stopped or its host is gone")};
  }
  return std::nullopt;
}

std::optional<Liveness::Verdict> Liveness::Stall(Clock::time_point now) const {
  bool step_is_on = false;
  for (const Seen& seen : seen_) {
    if (!seen.watched) continue;
    if (now - seen.advanced <= timeout_) return std::nullopt;
    step_is_on |= seen.pulse.activity != Activity::kIdle;
  }
  if (!step_is_on) return std::nullopt;
  // Who computes keeps the waiting ones waiting, else who is idle; among equals who has passed the fewest
  // collectives is behind.
  const auto blame = [](const Seen& seen) {
    const int order = seen.pulse.activity == Activity::kComputing ? 0
                      : seen.pulse.activity == Activity::kIdle    ? 1
                                                                  : 2;
    return std::pair(seen.watched ? order : 3, seen.pulse.collectives);
  };
  const auto culprit = std::ranges::min_element(seen_, {}, blame);
  const Pulse& pulse = culprit->pulse;
  const char* doing = pulse.activity == Activity::kIdle        ? "takes no part in it"
                      : pulse.activity == Activity::kComputing ? "computes and does not get on"
                                                               : "waits for the others";
  const auto rank = static_cast<int>(culprit - seen_.begin());
  return Verdict{rank, StrCat("no rank has got on with the step for ", Seconds(timeout_), ": rank ", rank,
                              " ", doing, " after ", pulse.collectives, " collectives")};
}

}  // namespace perigee::comm
