#include "testing/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "testing/random.h"

namespace perigee::test {
namespace {

using ::testing::HasSubstr;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Compare, Figures) {
  const Difference d = Compare(std::vector<double>{1, 2, 3.5}, std::vector<double>{1, 2.5, 3});
  EXPECT_EQ(d.max_abs, 0.5);
  EXPECT_NEAR(d.max_rel, 0.2, 0.034);
  EXPECT_NEAR(d.relative_rmse, 0.7071068 / 4.0311289, 1e-6);
  EXPECT_NEAR(d.cosine, 16.5 / (4.1533119 * 4.0311289), 1e-6);
  EXPECT_EQ(d.worst, 1);
  EXPECT_EQ(d.non_finite, -1);
}

TEST(Compare, NonFiniteMustAgreeInPlace) {
  const std::vector<double> e = {1, kNan, kInf, -kInf};
  EXPECT_TRUE(Near(e, e, {}));
  EXPECT_EQ(Compare(std::vector<double>{1, kNan, -kInf, -kInf}, e).non_finite, 2);
  EXPECT_EQ(Compare(std::vector<double>{kNan, kNan, kInf, -kInf}, e).non_finite, 0);
  EXPECT_EQ(Compare(std::vector<double>{1, 1, kInf, -kInf}, e).non_finite, 1);
  EXPECT_FALSE(Near(std::vector<double>{1, 1, kInf, -kInf}, e, {.absolute = 100}));
}

TEST(Near, BoundsAndMessage) {
  const std::vector<double> e = {100, 0, 1};
  EXPECT_TRUE(Near(std::vector<double>{101, 0, 1}, e, {.relative = 0.011}));
  EXPECT_TRUE(Near(std::vector<double>{100, 0.9, 1}, e, {.of_max = 0.01}));
  EXPECT_FALSE(Near(std::vector<double>{100, 0.9, 1}, e, {.relative = 0.5}));
  EXPECT_FALSE(Near(std::vector<double>{100, 0.9, 1}, e, {.of_max = 0.01, .relative_rmse = 1e-3}));
  EXPECT_FALSE(Near(std::vector<double>{100, 0}, e, {.absolute = 1}));
  const auto result = Near(std::vector<double>{100, 2, 4}, e, {.absolute = 1});
  EXPECT_THAT(result.message(), HasSubstr("2 entries out of tolerance"));
  EXPECT_THAT(result.message(), HasSubstr("first at [1]: 2, expected 0"));
  EXPECT_THAT(result.message(), HasSubstr("worst at [2]: 4, expected 1"));
}

TEST(SameBits, SeesSignOfZeroAndNan) {
  const std::vector<float> a = {0.0f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(SameBits(a, a));
  EXPECT_FALSE(SameBits(a, std::vector<float>{-0.0f, a[1]}));
  EXPECT_FALSE(SameBits(a, std::vector<float>{0.0f}));
}

TEST(Random, GatesCoverTheirRanges) {
  Random random(1);
  const auto range = [&](GateKind kind) {
    float low = 0, high = -1e9f;
    for (float g : RandomGates(random, 20000, kind)) {
      low = std::fmin(low, g);
      high = std::fmax(high, g);
    }
    return std::pair{low, high};
  };
  EXPECT_LT(range(GateKind::kModel).first, -50);
  EXPECT_GT(range(GateKind::kModel).second, -1e-4);
  EXPECT_LT(range(GateKind::kFast).first, -1900);
  EXPECT_GT(range(GateKind::kSlow).first, -0.0101);
  EXPECT_LT(range(GateKind::kSlow).second, 0);
  EXPECT_EQ(range(GateKind::kZero).first, 0);
  EXPECT_LT(range(GateKind::kMixed).first, -1000);
  EXPECT_EQ(range(GateKind::kMixed).second, 0);
}

}  // namespace
}  // namespace perigee::test
