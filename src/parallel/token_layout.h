#pragma once

#include <cstdint>
#include <string_view>

#include "batch/step_mode.h"

namespace perigee::parallel {

// Which of a step's rows a rank holds.
enum class Sharding : uint8_t {
  kFull,  // all rows, in token order
  kCp,    // its rows of the CP partition, in local order
};

// Whose partial results a value still has to be added up with.
enum class PendingSum : uint8_t {
  kNone,
  kAttnTp,  // the ranks that hold the same rows
  kTp,      // all ranks
};

// The layout of one value over the ranks. Two equal layouts need no communication.
struct TokenLayout {
  Sharding sharding = Sharding::kFull;
  PendingSum pending = PendingSum::kNone;

  friend bool operator==(const TokenLayout&, const TokenLayout&) = default;
};

using batch::StepMode;

// What a block of the model does to its rows, as far as layouts are concerned.
enum class BlockKind : uint8_t { kKda, kMla, kFeedForward };
std::string_view BlockKindName(BlockKind kind);

}  // namespace perigee::parallel
