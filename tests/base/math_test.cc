#include "base/math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace perigee {
namespace {

TEST(Math, CeilDivAndAlignUp) {
  EXPECT_EQ(CeilDiv(0, 4), 0);
  EXPECT_EQ(CeilDiv(1, 4), 1);
  EXPECT_EQ(CeilDiv(8, 4), 2);
  EXPECT_EQ(CeilDiv(9, 4), 3);
  EXPECT_EQ(AlignUp(0, 64), 0);
  EXPECT_EQ(AlignUp(1, 64), 64);
  EXPECT_EQ(AlignUp(64, 64), 64);
  EXPECT_EQ(AlignUp<int64_t>(65, 64), 128);
}

TEST(Math, CheckedSumsAndProducts) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(CheckedAdd<uint64_t>(3, 4), uint64_t{7});
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax, 0), kMax);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<uint64_t>(1, kMax), std::nullopt);
  EXPECT_EQ(CheckedAdd<uint8_t>(200, 56), std::nullopt);
  EXPECT_EQ(CheckedMul<uint64_t>(0, kMax), uint64_t{0});
  EXPECT_EQ(CheckedMul<uint64_t>(kMax, 0), uint64_t{0});
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 32, (uint64_t{1} << 32) - 1),
            kMax - ((uint64_t{1} << 32) - 1));
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
}

TEST(Math, PartsCoverEverythingOnce) {
  for (const long n : {0L, 1L, 7L, 8L, 9L, 2304L, 163840L}) {
    for (const long parts : {1L, 3L, 8L}) {
      EXPECT_EQ(PartBegin(0, n, parts), 0);
      EXPECT_EQ(PartBegin(parts, n, parts), n);
      for (long p = 0; p < parts; ++p) {
        const long size = PartBegin(p + 1, n, parts) - PartBegin(p, n, parts);
        EXPECT_GE(size, n / parts);
        EXPECT_LE(size, CeilDiv(n, parts));
      }
    }
  }
  EXPECT_EQ(PartBegin(3, 10, 8), 3);  // floor(30 / 8)
}

}  // namespace
}  // namespace perigee
