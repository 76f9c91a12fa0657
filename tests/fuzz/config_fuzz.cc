#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/kimi_linear/config.h"

// Any text as config.json and as generation_config.json: an error of one line, or a configuration whose sizes
// can be counted.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto config = perigee::model::ParseKimiLinearConfig(json, "FILE");
  if (config.ok()) {
    const auto layers = static_cast<size_t>(config->num_hidden_layers);
    PERIGEE_CHECK(config->is_kda.size() == layers && config->is_moe.size() == layers);
    const perigee::model::ModelCounts counts = perigee::model::CountModel(*config);
    PERIGEE_CHECK(counts.parameters > 0 && counts.parameters < uint64_t{1} << 62);
    PERIGEE_CHECK(counts.active_gemm_weights < counts.parameters);
    if (config->num_experts * config->NumMoeLayers() < 10000)
      PERIGEE_CHECK(!perigee::model::ExpectedTensors(*config).empty());
  } else {
    PERIGEE_CHECK(config.status().message().starts_with("FILE: "));
    PERIGEE_CHECK(config.status().message().find('\n') == std::string::npos);
  }
  const auto ids = perigee::model::ParseGenerationStopIds(json, 512, "FILE");
  if (ids.ok()) {
    for (int32_t id : *ids) PERIGEE_CHECK(id >= 0 && id < 512);
  }
  return 0;
}
