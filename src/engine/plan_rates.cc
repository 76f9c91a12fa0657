#include "engine/plan_rates.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "tensor/safetensors.h"

namespace perigee::engine {
namespace {

using nlohmann::json;

constexpr double kBytesPerGigabit = 1e9 / 8;
// Wide enough for any machine, and sums and products of such numbers stay finite.
constexpr double kLeastRate = 1e-9;
constexpr double kMostRate = 1e9;
constexpr size_t kMaxProfileBytes = size_t{1} << 20;

// A profile as JSON, or what is wrong with it.
StatusOr<json> ParseObject(std::string_view text, const std::string& where) {
  // The parser takes a NUL for the end of its input and would not look at what follows.
  if (text.find('\0') != std::string_view::npos) return UsageError(StrCat(where, ": holds a NUL byte"));
  std::vector<std::set<std::string>> open;  // the keys so far of each object that has begun
  std::optional<std::string> twice;
  const auto look = [&](int, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second &&
        !twice) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  try {
    json parsed = json::parse(text.begin(), text.end(), look);
    if (twice) return UsageError(StrCat(where, ": the key ", Quoted(*twice), " is given twice"));
    if (!parsed.is_object()) return UsageError(StrCat(where, ": accepted: a JSON object"));
    return parsed;
  } catch (const json::parse_error& e) {
    return UsageError(StrCat(where, ": is not valid JSON at ", TextPosition(text, e.byte)));
  } catch (const json::exception&) {
    return UsageError(StrCat(where, ": holds a number beyond the range of a double"));
  }
}

// Reads one object of a profile; every key must be known and every value a rate.
class ProfileReader {
 public:
  ProfileReader(std::string where, const json& object) : where_(std::move(where)), object_(object) {}

  Status Number(const char* key, bool or_zero, const std::vector<GivenRate*>& targets) {
    known_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) return Status::Ok();
    if (!found->is_number() || !IsRate(found->get<double>(), or_zero)) {
      return UsageError(StrCat(where_, ": ", key, " ", Written(*found),
                               " is not accepted; accepted: ", AcceptedRate(or_zero)));
    }
    for (GivenRate* target : targets) *target = {found->get<double>(), RateSource::kProfile};
    return Status::Ok();
  }

  // The rates of some links.
  Status Links(const std::vector<GivenLink*>& links) {
    std::vector<GivenRate*> gbps, latency;
    for (GivenLink* link : links) {
      gbps.push_back(&link->link_gbps);
      latency.push_back(&link->latency_us);
    }
    PERIGEE_RETURN_IF_ERROR(Number("link_gbps", false, gbps));
    return Number("latency_us", true, latency);
  }

  // One group's object.
  Status Group(const char* key, GivenLink* link) {
    known_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) return Status::Ok();
    if (!found->is_object()) {
      return UsageError(StrCat(where_, ": ", key, " ", Written(*found),
                               " is not accepted; accepted: an object with link_gbps and latency_us"));
    }
    ProfileReader group(StrCat(where_, ": ", key), *found);
    PERIGEE_RETURN_IF_ERROR(group.Links({link}));
    return group.Done();
  }

  // After all that is known was asked for.
  Status Done() const {
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key)) continue;
      const std::vector<std::string> accepted(known_.begin(), known_.end());
      return UsageError(
          StrCat(where_, ": unknown key ", Quoted(key), "; accepted: ", StrJoin(accepted, ", ")));
    }
    return Status::Ok();
  }

 private:
  // Never throws: bytes that are no UTF-8 are replaced.
  static std::string Written(const json& value) {
    return Quoted(value.dump(-1, ' ', true, json::error_handler_t::replace), 60);
  }

  const std::string where_;
  const json& object_;
  std::set<std::string> known_;
};

}  // namespace

std::string_view RateSourceName(RateSource source) {
  switch (source) {
    case RateSource::kDefault:
      return "default";
    case RateSource::kProfile:
      return "--plan-profile";
    case RateSource::kFlag:
      return "flag";
  }
  return "?";
}

GivenRates DefaultRates() {
  const GivenLink memory{.link_gbps = {64}, .latency_us = {20}};
  return {.tp = memory, .cp = memory, .attn_tp = memory, .tflops = {0.05}, .row_bytes = {4}};
}

bool IsRate(double value, bool or_zero) {
  return (value >= kLeastRate && value <= kMostRate) || (or_zero && value == 0);
}

std::string_view AcceptedRate(bool or_zero) {
  return or_zero ? "0, or a number from 1e-9 to 1e9" : "a number from 1e-9 to 1e9";
}

Status ApplyProfile(std::string_view text, const std::string& where, GivenRates* rates) {
  PERIGEE_ASSIGN_OR_RETURN(const json profile, ParseObject(text, where));
  ProfileReader reader(where, profile);
  PERIGEE_RETURN_IF_ERROR(reader.Links({&rates->tp, &rates->cp, &rates->attn_tp}));
  PERIGEE_RETURN_IF_ERROR(reader.Number("tflops", false, {&rates->tflops}));
  PERIGEE_RETURN_IF_ERROR(reader.Number("row_bytes", false, {&rates->row_bytes}));
  PERIGEE_RETURN_IF_ERROR(reader.Group("tp", &rates->tp));
  PERIGEE_RETURN_IF_ERROR(reader.Group("cp", &rates->cp));
  PERIGEE_RETURN_IF_ERROR(reader.Group("attn_tp", &rates->attn_tp));
  return reader.Done();
}

StatusOr<GivenRates> ReadRates(const ParallelOptions& options) {
  GivenRates rates = DefaultRates();
  if (!options.plan_profile.empty()) {
    const StatusOr<MappedFile> file = MappedFile::Open(options.plan_profile);
    const std::string where = StrCat("--plan-profile ", Quoted(options.plan_profile, 300));
    if (!file.ok()) return Status(file.status().code(), StrCat("--plan-profile ", file.status().message()));
    const std::span<const std::byte> bytes = file->bytes();
    if (bytes.size() > kMaxProfileBytes) {
      return UsageError(StrCat(where, ": ", HumanBytes(bytes.size()), "; accepted: at most ",
                               HumanBytes(kMaxProfileBytes)));
    }
    PERIGEE_RETURN_IF_ERROR(
        ApplyProfile({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where, &rates));
  }
  for (GivenLink* link : {&rates.tp, &rates.cp, &rates.attn_tp}) {
    if (options.link_gbps) link->link_gbps = {*options.link_gbps, RateSource::kFlag};
    if (options.latency_us) link->latency_us = {*options.latency_us, RateSource::kFlag};
  }
  if (options.tflops) rates.tflops = {*options.tflops, RateSource::kFlag};
  return rates;
}

parallel::Rates ToPlannerRates(const GivenRates& rates) {
  const auto link = [](const GivenLink& given) {
    return parallel::Link{.bytes_per_second = given.link_gbps.value * kBytesPerGigabit,
                          .seconds_per_call = given.latency_us.value * 1e-6};
  };
  return {.tp = link(rates.tp),
          .cp = link(rates.cp),
          .attn_tp = link(rates.attn_tp),
          .flops_per_second = rates.tflops.value * 1e12,
          .row_bytes = rates.row_bytes.value};
}

}  // namespace perigee::engine
