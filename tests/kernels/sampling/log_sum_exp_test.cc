#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/sampling/sampling.h"
#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/targets.h"

namespace perigee {
namespace {

using test::ForEachTarget;
using test::KernelRunner;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double Reference(const std::vector<float>& row) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(x - max);
  return max + std::log(sum);
}

float OneRow(const KernelRunner& runner, const std::vector<float>& row) {
  std::vector<float> lse(1);
  kernels::LogSumExp(runner.context(), {row.data(), 1, static_cast<int64_t>(row.size())}, lse);
  return lse[0];
}

TEST(LogSumExp, EveryWidthOnEveryTarget) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    for (const int64_t cols : {1, 2, 3, 7, 8, 9, 15, 16, 17, 127, 128, 129, 1000, 4099, 163840}) {
      SCOPED_TRACE(cols);
      Random random(static_cast<uint64_t>(cols));
      const int64_t rows = cols > 10000 ? 2 : 5;
      const PaddedMatrix logits(rows, cols, random.Normals(rows * cols, random.Uniform(0.1, 12)));
      std::vector<float> lse(static_cast<size_t>(rows));
      kernels::LogSumExp(runner.context(), logits.view(), lse);
      for (int64_t r = 0; r < rows; ++r) {
        const double expected = Reference(logits.row(r));
        EXPECT_NEAR(lse[static_cast<size_t>(r)], expected, 5e-7 + 1.2e-7 * std::fabs(expected));
      }
    }
  });
}

TEST(LogSumExp, ProbabilitiesSumToOne) {
  const KernelRunner runner;
  Random random(2);
  std::vector<float> row = random.Uniforms(5000, -2000, 80);
  const double lse = OneRow(runner, row);
  double sum = 0;
  for (const float x : row) sum += std::exp(x - lse);
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(LogSumExp, ExtremesStayFinite) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    EXPECT_EQ(OneRow(runner, {-2000}), -2000);
    EXPECT_EQ(OneRow(runner, {3e38f, -3e38f}), 3e38f);
    EXPECT_NEAR(OneRow(runner, std::vector<float>(64, 1e4f)), 1e4 + std::log(64), 1e-3);
    // Masked entries count for nothing, also when they fill whole parts or a part's tail.
    std::vector<float> row(100, -kInfinity);
    row[57] = 2;
    EXPECT_EQ(OneRow(runner, row), 2);
    row[99] = 2;
    EXPECT_NEAR(OneRow(runner, row), 2 + std::log(2), 1e-6);
    EXPECT_EQ(OneRow(runner, std::vector<float>(9, -kInfinity)), -kInfinity);
    row[3] = kInfinity;
    EXPECT_EQ(OneRow(runner, row), kInfinity);
    row[3] = std::nanf("");
    EXPECT_TRUE(std::isnan(OneRow(runner, row)));
  });
}

// The value of a row is one number whatever runs it: threads, other rows, vector width.
TEST(LogSumExp, RowsStandAlone) {
  constexpr int64_t kRows = 5, kCols = 40007;
  Random random(9);
  const PaddedMatrix logits(kRows, kCols, random.Normals(kRows * kCols, 4));
  std::vector<float> first;
  ForEachTarget([&](int64_t target) {
    if (!test::HasFusedMultiplyAdd(target)) return;
    for (const int threads : {1, 2, 3}) {
      const KernelRunner runner(threads);
      std::vector<float> lse(kRows);
      kernels::LogSumExp(runner.context(), logits.view(), lse);
      if (first.empty()) first = lse;
      EXPECT_TRUE(SameBits(lse, first)) << threads;
      for (int64_t r = 0; r < kRows; ++r) {
        EXPECT_EQ(OneRow(runner, logits.row(r)), first[static_cast<size_t>(r)]) << r;
      }
    }
  });
  ASSERT_FALSE(first.empty());
}

}  // namespace
}  // namespace perigee
