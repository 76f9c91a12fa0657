#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include <hwy/targets.h>

namespace perigee::test {

// Runs body once per instruction set that was compiled in and that this machine has. Link hwy.
inline void ForEachTarget(const std::function<void(int64_t target)>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    body(target);
  }
  hwy::GetChosenTarget().DeInit();
}

// Whether this target rounds a multiply-add once: such targets must agree to the bit.
inline bool HasFusedMultiplyAdd(int64_t target) {
  return target != HWY_SSE4 && target != HWY_SSSE3;
}

}  // namespace perigee::test
