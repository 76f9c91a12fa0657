#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/plan_rates.h"

// Any text as a profile: a usage error of one line, or rates that the planner can reckon with.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace perigee;
  engine::GivenRates rates = engine::DefaultRates();
  const Status read = engine::ApplyProfile({reinterpret_cast<const char*>(data), size}, "FILE", &rates);
  if (!read.ok()) {
    PERIGEE_CHECK(read.code() == StatusCode::kUsage);
    PERIGEE_CHECK(read.message().starts_with("FILE: "));
    PERIGEE_CHECK(read.message().find('\n') == std::string_view::npos);
    return 0;
  }
  for (const engine::GivenLink& link : {rates.tp, rates.cp, rates.attn_tp}) {
    PERIGEE_CHECK(engine::IsRate(link.link_gbps.value, false));
    PERIGEE_CHECK(engine::IsRate(link.latency_us.value, true));
  }
  PERIGEE_CHECK(engine::IsRate(rates.tflops.value, false) && engine::IsRate(rates.row_bytes.value, false));
  return 0;
}
