#pragma once

#include <cstdint>

namespace perigee::scheduler {

// At which places a prompt leaves a snapshot of its state for others: the last block boundary before its end
// (so that the same prompt again computes one block at most), the place where it left what others had
// computed before it, and every multiple of the interval.
struct SnapshotPoints {
  int64_t prompt_size = 0;
  int64_t interval = 0;  // a multiple of 64
  int64_t branch = 0;    // 0: none

  // The first such place after `position`, at most prompt_size - 1; or nothing, told by prompt_size.
  int64_t After(int64_t position) const;
};

}  // namespace perigee::scheduler
