#include "base/trace.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/check.h"

namespace perigee {
namespace {

TEST(Trace, ScopesNestPerThread) {
  EXPECT_EQ(CurrentTrace(), "");
  {
    const TraceScope step("step");
    const TraceScope layer("layer", 3);
    EXPECT_EQ(CurrentTrace(), "step > layer 3");
    std::thread([] {
      SetTraceRank(2);
      const TraceScope other("load");
      EXPECT_EQ(CurrentTrace(), "rank 2 > load");
    }).join();
    EXPECT_EQ(CurrentTrace(), "step > layer 3");
  }
  EXPECT_EQ(CurrentTrace(), "");
}

TEST(CheckDeathTest, SaysWhereWhatAndWhy) {
  const auto fail = [] {
    const TraceScope scope("layer", 7);
    PERIGEE_CHECK_MSG(1 + 1 == 3, "sum is 2");
  };
  EXPECT_DEATH(fail(), "trace_test");
  EXPECT_DEATH(fail(), "1 \\+ 1 == 3");
  EXPECT_DEATH(fail(), "sum is 2");
  EXPECT_DEATH(fail(), "layer 7");
}

TEST(Check, EvaluatesTheMessageOnFailureOnly) {
  bool evaluated = false;
  PERIGEE_CHECK_MSG(true, (evaluated = true, "message"));
  EXPECT_FALSE(evaluated);
}

}  // namespace
}  // namespace perigee
