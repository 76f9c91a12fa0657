#pragma once

#include <cstdint>
#include <string_view>

namespace perigee::batch {

// How a step runs over the ranks. Prefill and decode steps alternate; the plan of a step names its mode.
enum class StepMode : uint8_t {
  kDecode,      // all rows on every rank, heads and widths by share
  kTp,          // the same for prompt rows
  kHead,        // rows sharded; a block that needs all rows gathers its normed input
  kState,       // as kHead, but KDA too keeps to its rows: ranks exchange what their rows do to its state
  kReplicated,  // the seed's plan: rows replicated, sharded inside MLA only
};

constexpr std::string_view StepModeName(StepMode mode) {
  switch (mode) {
    case StepMode::kDecode:
      return "decode";
    case StepMode::kTp:
      return "tp";
    case StepMode::kHead:
      return "head";
    case StepMode::kState:
      return "state";
    case StepMode::kReplicated:
      return "replicated";
  }
  return "?";
}

}  // namespace perigee::batch
