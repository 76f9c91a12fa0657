#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "tensor/device.h"

namespace perigee::engine {

// What the process has.
struct Machine {
  uint64_t memory_bytes = 0;     // physical, or the control group's limit when that is lower; or the device's
  uint64_t available_bytes = 0;  // of these, not taken yet
  int32_t cores = 1;
  uint64_t random = 1;  // for the seed when none was given
};

// Memory as /proc/meminfo and the control group give it, cores by affinity, a fresh random number.
Machine ReadMachine();
// The same with the memory of the device that computes, which is opened on the calling thread.
StatusOr<Machine> ReadMachine(Device device);

// The tightest memory limit among the process's control group and those above it, of either hierarchy
// version, and what counts against it that cannot be reclaimed.
struct GroupMemory {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;
};
// Nothing when no limit is set. root: where /proc and /sys are; "" on a real machine.
std::optional<GroupMemory> ReadGroupMemory(const std::string& root);

}  // namespace perigee::engine
