#include "engine/plan_rates.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/strings.h"

namespace perigee::engine {
namespace {

using nlohmann::json;
using parallel::Link;
using parallel::Rates;

constexpr double kBytesPerGigabit = 1e9 / 8;

// Reads one object of a profile; every key must be known and every value a number that makes sense.
class ProfileReader {
 public:
  ProfileReader(std::string where, const json& object) : where_(std::move(where)), object_(object) {}

  // target = value * unit, if the key is there. `zero`: whether 0 is accepted.
  Status Number(const char* key, double unit, bool zero, double* target) {
    const auto found = object_.find(key);
    if (found == object_.end()) return Status::Ok();
    ++read_;
    const double value = found->is_number() ? found->get<double>() : -1;
    if (!(value > 0) && !(zero && value == 0)) {
      return InvalidArgument(StrCat(where_, ": ", key, ": ", Quoted(found->dump(), 60),
                                    "; accepted: a number, ", zero ? "0 or more" : "more than 0"));
    }
    *target = value * unit;
    return Status::Ok();
  }

  Status LinkRates(Link* link) {
    PERIGEE_RETURN_IF_ERROR(Number("link_gbps", kBytesPerGigabit, false, &link->bytes_per_second));
    return Number("latency_us", 1e-6, true, &link->seconds_per_call);
  }

  // One group's object.
  Status Group(const char* key, Link* link) {
    const auto found = object_.find(key);
    if (found == object_.end()) return Status::Ok();
    ++read_;
    if (!found->is_object()) return InvalidArgument(StrCat(where_, ": ", key, ": accepted: an object"));
    ProfileReader group(StrCat(where_, ": ", key), *found);
    PERIGEE_RETURN_IF_ERROR(group.LinkRates(link));
    return group.Done("link_gbps, latency_us");
  }

  Status Done(const char* accepted) const {
    if (read_ == object_.size()) return Status::Ok();
    return InvalidArgument(StrCat(where_, ": unknown key; accepted: ", accepted));
  }

 private:
  const std::string where_;
  const json& object_;
  size_t read_ = 0;
};

Status ReadProfile(const std::string& path, Rates* rates) {
  std::ifstream file(path);
  if (!file) return NotFound(StrCat("--plan-profile ", Quoted(path, 300), ": cannot be read"));
  const json profile = json::parse(file, nullptr, false);
  const std::string where = StrCat("--plan-profile ", path);
  if (!profile.is_object()) return InvalidArgument(StrCat(where, ": accepted: a JSON object"));
  ProfileReader reader(where, profile);
  Link link = rates->tp;
  PERIGEE_RETURN_IF_ERROR(reader.LinkRates(&link));
  rates->tp = rates->cp = rates->attn_tp = link;
  PERIGEE_RETURN_IF_ERROR(reader.Number("tflops", 1e12, false, &rates->flops_per_second));
  PERIGEE_RETURN_IF_ERROR(reader.Number("row_bytes", 1, false, &rates->row_bytes));
  PERIGEE_RETURN_IF_ERROR(reader.Group("tp", &rates->tp));
  PERIGEE_RETURN_IF_ERROR(reader.Group("cp", &rates->cp));
  PERIGEE_RETURN_IF_ERROR(reader.Group("attn_tp", &rates->attn_tp));
  return reader.Done("link_gbps, latency_us, tflops, row_bytes, tp, cp, attn_tp");
}

}  // namespace

Rates DefaultRates() {
  // A copy between threads of one machine, a wake-up, and what a core or two multiply in F32.
  const Link memory{.bytes_per_second = 8e9, .seconds_per_call = 20e-6};
  return {.tp = memory, .cp = memory, .attn_tp = memory, .flops_per_second = 50e9, .row_bytes = 4};
}

StatusOr<Rates> ReadRates(const ParallelOptions& options) {
  Rates rates = DefaultRates();
  if (!options.plan_profile.empty()) {
    PERIGEE_RETURN_IF_ERROR(ReadProfile(options.plan_profile, &rates));
  }
  for (Link* link : {&rates.tp, &rates.cp, &rates.attn_tp}) {
    if (options.link_gbps) link->bytes_per_second = *options.link_gbps * kBytesPerGigabit;
    if (options.latency_us) link->seconds_per_call = *options.latency_us * 1e-6;
  }
  if (options.tflops) rates.flops_per_second = *options.tflops * 1e12;
  return rates;
}

}  // namespace perigee::engine
