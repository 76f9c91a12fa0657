#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "ref/norm_ref.h"
#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/targets.h"

namespace perigee {
namespace {

using test::ForEachTarget;
using test::KernelRunner;
using test::Near;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;
using test::ToDouble;

// A mean of n squares, a root and two products: about four roundings an entry, and half the relative error
// of the mean.
constexpr test::Tolerance kNormTolerance{.absolute = 1e-30, .relative = 1e-6};
constexpr float kEps = 1e-5f;

const std::vector<int64_t> kWidths = {1, 2, 7, 8, 15, 16, 17, 31, 33, 72, 128, 513, 2304};

TEST(RmsNorm, KnownValues) {
  const KernelRunner runner;
  std::vector<float> x = {3, 4};
  const std::vector<float> weight = {1, 2};
  kernels::RmsNorm(runner.context(), {x.data(), 1, 2}, weight, 0, {x.data(), 1, 2});
  EXPECT_FLOAT_EQ(x[0], 0.84852814f);
  EXPECT_FLOAT_EQ(x[1], 2.2627418f);
  // eps is added to the mean of squares, inside the root: 1e-3 / sqrt(1e-6 + 3e-6).
  std::vector<float> tiny = {1e-3f};
  kernels::RmsNorm(runner.context(), {tiny.data(), 1, 1}, std::vector<float>{1}, 3e-6f, {tiny.data(), 1, 1});
  EXPECT_FLOAT_EQ(tiny[0], 0.5f);
  // A row of zeros stays zero.
  std::vector<float> zero(5);
  kernels::RmsNorm(runner.context(), {zero.data(), 1, 5}, std::vector<float>(5, 1.f), kEps,
                   {zero.data(), 1, 5});
  EXPECT_EQ(zero, std::vector<float>(5));
}

TEST(RmsNorm, EveryWidthOnEveryTarget) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    for (const int64_t cols : kWidths) {
      SCOPED_TRACE(cols);
      Random random(static_cast<uint64_t>(cols));
      const int64_t rows = 1 + random.Below(4);
      const std::vector<float> values = random.Normals(rows * cols, std::exp(random.Uniform(-6, 6)));
      const std::vector<float> weight = random.Normals(cols);
      const PaddedMatrix x(rows, cols, values);
      PaddedMatrix y(rows, cols);
      kernels::RmsNorm(runner.context(), x.view(), weight, kEps, y.view());
      const std::vector<double> expected = ref::RmsNorm(ToDouble(values), ToDouble(weight), kEps);
      EXPECT_TRUE(Near(y.values(), expected, kNormTolerance));
      EXPECT_TRUE(y.GapsUntouched());

      PaddedMatrix in_place = x;
      kernels::RmsNorm(runner.context(), in_place.view(), weight, kEps, in_place.view());
      EXPECT_TRUE(SameBits(in_place.values(), y.values()));
    }
  });
}

TEST(AddRmsNorm, IsAdditionThenNorm) {
  const KernelRunner runner;
  for (const int64_t cols : kWidths) {
    SCOPED_TRACE(cols);
    Random random(static_cast<uint64_t>(cols) + 100);
    const int64_t rows = 3;
    const std::vector<float> a = random.Normals(rows * cols), b = random.Normals(rows * cols);
    const std::vector<float> weight = random.Normals(cols);
    std::vector<float> sum = a;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
    PaddedMatrix expected(rows, cols);
    kernels::RmsNorm(runner.context(), {sum.data(), rows, cols}, weight, kEps, expected.view());

    const PaddedMatrix branch(rows, cols, b);
    PaddedMatrix residual(rows, cols, a), y(rows, cols);
    kernels::AddRmsNorm(runner.context(), branch.view(), residual.view(), weight, kEps, y.view());
    EXPECT_TRUE(SameBits(residual.values(), sum));
    EXPECT_TRUE(SameBits(y.values(), expected.values()));
    EXPECT_TRUE(residual.GapsUntouched());
    EXPECT_TRUE(y.GapsUntouched());
  }
}

TEST(GatedRmsNorm, EveryWidthOnEveryTarget) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    for (const int64_t value_dim : {1, 3, 16, 24, 32, 129}) {
      SCOPED_TRACE(value_dim);
      Random random(static_cast<uint64_t>(value_dim));
      const int64_t rows = 4, cols = 3 * value_dim;
      const std::vector<float> values = random.Normals(rows * cols, 3);
      std::vector<float> gates = random.Normals(rows * cols, 3);
      for (size_t i = 0; i < gates.size(); i += 3) gates[i] = static_cast<float>(random.Uniform(-2000, 80));
      const std::vector<float> weight = random.Normals(value_dim);
      const PaddedMatrix x(rows, cols, values), gate(rows, cols, gates, 2);
      PaddedMatrix y(rows, cols);
      kernels::GatedRmsNorm(runner.context(), x.view(), gate.view(), weight, kEps, y.view());
      const std::vector<double> expected =
          ref::GatedRmsNorm(ToDouble(values), ToDouble(gates), ToDouble(weight), kEps);
      // Gates below about -87 are flushed to zero.
      EXPECT_TRUE(Near(y.values(), expected, {.absolute = 1e-36, .relative = 2e-6}));
      EXPECT_TRUE(y.GapsUntouched());

      PaddedMatrix in_place = x;
      kernels::GatedRmsNorm(runner.context(), in_place.view(), gate.view(), weight, kEps, in_place.view());
      EXPECT_TRUE(SameBits(in_place.values(), y.values()));
    }
  });
}

TEST(GatedRmsNorm, NaNIsNotHidden) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    const std::vector<float> x(3, 1.f), weight(3, 1.f), gate = {0, std::nanf(""), -300};
    std::vector<float> y(3);
    kernels::GatedRmsNorm(runner.context(), {x.data(), 1, 3}, {gate.data(), 1, 3}, weight, 0,
                          {y.data(), 1, 3});
    EXPECT_EQ(y[0], 0.5f);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], 0);
  });
}

// A row's bits depend on nothing but the row: not on the rows around it nor on the number of threads, and not
// on the vector width either.
TEST(Norms, RowsStandAlone) {
  constexpr int64_t kRows = 70, kCols = 2304, kHead = 128;
  Random random(5);
  const std::vector<float> values = random.Normals(kRows * kCols), gates = random.Normals(kRows * kCols, 9);
  const std::vector<float> weight = random.Normals(kCols);
  const std::vector<float> head_weight(weight.begin(), weight.begin() + kHead);
  const PaddedMatrix x(kRows, kCols, values), gate(kRows, kCols, gates);
  std::vector<float> plain, gated;
  ForEachTarget([&](int64_t target) {
    if (!test::HasFusedMultiplyAdd(target)) return;
    for (const int threads : {1, 2, 3}) {
      const KernelRunner runner(threads);
      PaddedMatrix y(kRows, kCols), z(kRows, kCols);
      kernels::RmsNorm(runner.context(), x.view(), weight, kEps, y.view());
      kernels::GatedRmsNorm(runner.context(), x.view(), gate.view(), head_weight, kEps, z.view());
      if (plain.empty()) {
        plain = y.values();
        gated = z.values();
      }
      EXPECT_TRUE(SameBits(y.values(), plain)) << threads;
      EXPECT_TRUE(SameBits(z.values(), gated)) << threads;
      for (const int64_t r : {0, 33, 69}) {
        kernels::RmsNorm(runner.context(), x.view().Rows(r, 1), weight, kEps, y.view().Rows(0, 1));
        EXPECT_TRUE(SameBits(y.row(0), y.row(r)) || r == 0) << r;
        kernels::GatedRmsNorm(runner.context(), x.view().Rows(r, 1), gate.view().Rows(r, 1), head_weight,
                              kEps, z.view().Rows(0, 1));
        EXPECT_TRUE(SameBits(z.row(0), z.row(r)) || r == 0) << r;
      }
    }
  });
  ASSERT_FALSE(plain.empty());
}

}  // namespace
}  // namespace perigee
