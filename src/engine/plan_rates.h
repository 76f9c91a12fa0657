#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/parallel_options.h"
#include "parallel/planner.h"

namespace perigee::engine {

// Who said it.
enum class RateSource : uint8_t { kDefault, kProfile, kFlag };
// "default", "--plan-profile", "flag".
std::string_view RateSourceName(RateSource source);

// A rate in the unit of its flag and of its key in a profile.
struct GivenRate {
  double value = 0;
  RateSource source = RateSource::kDefault;
};

struct GivenLink {
  GivenRate link_gbps;   // billions of bits that a rank sends in a second
  GivenRate latency_us;  // microseconds of a collective besides
};

// What the planner reckons with, as it was given.
struct GivenRates {
  GivenLink tp;         // among all ranks
  GivenLink cp;         // in a CP group
  GivenLink attn_tp;    // among the ranks that hold the same rows
  GivenRate tflops;     // 10^12 operations of a rank in a second; a multiply and an add are two
  GivenRate row_bytes;  // of an element of a row
};

// When nothing is said: round figures for threads of one process on the CPU (a copy between them, a wake-up,
// what a core or two multiply in F32), of no machine in particular. Never measured at the start of a server:
// the same flags choose the same modes.
GivenRates DefaultRates();

// What a rate may be, and that in words; a latency may be 0 too.
bool IsRate(double value, bool or_zero);
std::string_view AcceptedRate(bool or_zero);

// Takes over what the text of a profile says. It is a JSON object of numbers, each of which may be missing:
//   link_gbps, latency_us, tflops, row_bytes  as above, a link's for every group
//   tp, cp, attn_tp                           objects with link_gbps and latency_us of one group
// Errors are kUsage, like those of the flags for the same numbers, and say `where`, the place or the key, and
// what is accepted.
Status ApplyProfile(std::string_view json, const std::string& where, GivenRates* rates);

// The defaults, over them the file of --plan-profile, over that the flags (which hold accepted rates).
// kNotFound or kInvalidArgument when there is no such file, or none that can be read.
StatusOr<GivenRates> ReadRates(const ParallelOptions& options);

parallel::Rates ToPlannerRates(const GivenRates& rates);

}  // namespace perigee::engine
