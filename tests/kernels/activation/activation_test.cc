#include "kernels/activation/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ref/kda_ref.h"
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

const std::vector<int64_t> kWidths = {1, 2, 3, 7, 9, 16, 17, 31, 40, 1024};

std::vector<double> Reference(const std::vector<float>& gate, const std::vector<float>& up) {
  std::vector<double> out;
  for (size_t i = 0; i < gate.size(); ++i) out.push_back(ref::Silu(gate[i]) * up[i]);
  return out;
}

TEST(SiluMul, SpecialValues) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> z = {0.f, -0.f, 1.f, -1.f, 2000.f, -2000.f, 3e38f, -3e38f, inf, std::nanf("")};
    const std::vector<float> one(z.size(), 1.f);
    const int64_t n = static_cast<int64_t>(z.size());
    kernels::SiluMul(runner.context(), {z.data(), 1, n}, {one.data(), 1, n}, {z.data(), 1, n});
    EXPECT_EQ(z[0], 0);
    EXPECT_EQ(z[1], 0);
    EXPECT_FLOAT_EQ(z[2], 0.7310585786f);
    EXPECT_FLOAT_EQ(z[3], -0.2689414214f);
    EXPECT_EQ(z[4], 2000);
    EXPECT_EQ(z[5], 0);
    EXPECT_EQ(z[6], 3e38f);
    EXPECT_EQ(z[7], 0);
    EXPECT_EQ(z[8], inf);
    EXPECT_TRUE(std::isnan(z[9]));
  });
}

TEST(SiluMul, SweepOnEveryTarget) {
  const KernelRunner runner;
  // Steps of 1/64 over [-120, 90], and coarse ones down to -2000.
  std::vector<float> gate;
  for (int i = -120 * 64; i <= 90 * 64; ++i) gate.push_back(static_cast<float>(i) / 64);
  for (int i = -2000; i < -120; ++i) gate.push_back(static_cast<float>(i));
  const std::vector<float> up(gate.size(), -1.5f);
  const std::vector<double> expected = Reference(gate, up);
  ForEachTarget([&](int64_t) {
    std::vector<float> y(gate.size());
    const int64_t n = static_cast<int64_t>(y.size());
    kernels::SiluMul(runner.context(), {gate.data(), 1, n}, {up.data(), 1, n}, {y.data(), 1, n});
    EXPECT_TRUE(Near(y, expected, {.absolute = 1e-35, .relative = 6e-7}));
  });
}

TEST(SiluMul, ShapesStridesAndAliases) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    for (const int64_t cols : kWidths) {
      SCOPED_TRACE(cols);
      Random random(static_cast<uint64_t>(cols));
      const int64_t rows = 1 + random.Below(5);
      const std::vector<float> g = random.Uniforms(rows * cols, -30, 30), u = random.Normals(rows * cols);
      const PaddedMatrix gate(rows, cols, g), up(rows, cols, u, 1);
      PaddedMatrix y(rows, cols, 3);
      kernels::SiluMul(runner.context(), gate.view(), up.view(), y.view());
      EXPECT_TRUE(Near(y.values(), Reference(g, u), {.absolute = 1e-30, .relative = 1e-6}));
      EXPECT_TRUE(y.GapsUntouched());

      PaddedMatrix over_gate = gate, over_up = up;
      kernels::SiluMul(runner.context(), over_gate.view(), up.view(), over_gate.view());
      kernels::SiluMul(runner.context(), gate.view(), over_up.view(), over_up.view());
      EXPECT_TRUE(SameBits(over_gate.values(), y.values()));
      EXPECT_TRUE(SameBits(over_up.values(), y.values()));
    }
  });
}

TEST(AddInPlace, AddsRowsOnly) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    for (const int64_t cols : kWidths) {
      Random random(static_cast<uint64_t>(cols));
      const std::vector<float> a = random.Normals(3 * cols), b = random.Normals(3 * cols);
      std::vector<float> sum = a;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
      const PaddedMatrix source(3, cols, b);
      PaddedMatrix target(3, cols, a, 2);
      kernels::AddInPlace(runner.context(), source.view(), target.view());
      EXPECT_TRUE(SameBits(target.values(), sum));
      EXPECT_TRUE(target.GapsUntouched());
    }
  });
}

// An element's bits depend on its own operands only: not on its column (a tail is no other path), on threads,
// or on the vector width.
TEST(SiluMul, ElementsStandAlone) {
  constexpr int64_t kRows = 40, kCols = 1025;
  Random random(3);
  const std::vector<float> g = random.Uniforms(kRows * kCols, -90, 40), u = random.Normals(kRows * kCols);
  std::vector<float> first;
  ForEachTarget([&](int64_t target) {
    if (!test::HasFusedMultiplyAdd(target)) return;
    for (const int threads : {1, 2, 3}) {
      const KernelRunner runner(threads);
      std::vector<float> y(g.size());
      kernels::SiluMul(runner.context(), {g.data(), kRows, kCols}, {u.data(), kRows, kCols},
                       {y.data(), kRows, kCols});
      if (first.empty()) first = y;
      EXPECT_TRUE(SameBits(y, first));
      for (const int64_t begin : {0, 1, 5, 16, 1000}) {
        for (const int64_t count : {1, 2, 3, 9, 17, 25}) {
          std::vector<float> part(static_cast<size_t>(count));
          kernels::SiluMul(runner.context(), {g.data() + begin, 1, count}, {u.data() + begin, 1, count},
                           {part.data(), 1, count});
          EXPECT_TRUE(
              SameBits(part, std::vector<float>(first.begin() + begin, first.begin() + begin + count)));
        }
      }
    }
  });
  ASSERT_FALSE(first.empty());
}

}  // namespace
}  // namespace perigee
