#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kda/kda.h"
#include "ref/kda_ref.h"
#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/targets.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using test::KernelRunner;
using test::Near;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;
using test::ToDouble;

std::vector<float> RunGate(const std::vector<float>& z, int64_t rows, const std::vector<float>& dt_bias,
                           const std::vector<float>& neg_exp_a, int threads, bool in_place) {
  const int64_t cols = static_cast<int64_t>(dt_bias.size());
  KernelRunner runner(threads);
  PaddedMatrix in(rows, cols, z), out(rows, cols);
  KdaGate(runner.context(), in.view(), dt_bias, neg_exp_a, in_place ? in.view() : out.view());
  EXPECT_TRUE(in.GapsUntouched());
  EXPECT_TRUE(out.GapsUntouched());
  return in_place ? in.values() : out.values();
}

TEST(KdaGate, SweepFromMinusEightyToEighty) {
  // One channel a step of z; A = 1, so the values are -softplus(z).
  std::vector<float> z;
  for (int i = -8000; i <= 8000; ++i) z.push_back(static_cast<float>(i) / 100);
  const std::vector<float> none(z.size(), 0.0f);
  const std::vector<double> expected = ref::KdaGate(ToDouble(z), ToDouble(none), {0.0});
  test::ForEachTarget([&](int64_t) {
    const std::vector<float> g = RunGate(z, 1, none, {-1.0f}, 2, false);
    EXPECT_TRUE(Near(g, expected, test::kGateTolerance));
    for (float v : g) EXPECT_LE(v, 0);
  });
}

TEST(KdaGate, ValuesOfTheSpecification) {
  const std::vector<float> g = RunGate({-2.5f, -0.5f, 2.5f, 24.5f}, 4, {0.5f}, {-4.0f}, 1, false);
  EXPECT_TRUE(Near(g, std::vector<double>{-0.507712, -2.772589, -12.194349, -100}, {.absolute = 1e-5}));
}

TEST(KdaGate, HeadsRowsBiasAndWideRanges) {
  Random random(41);
  for (int64_t per_head : {1, 7, 32, 128}) {
    const int64_t heads = 3, rows = 9, cols = heads * per_head;
    const std::vector<float> z = random.Normals(rows * cols, 6), bias = random.Normals(cols, 3);
    std::vector<float> neg_exp_a;
    std::vector<double> a_log;
    for (float a : {0.02f, 16.0f, 200.0f}) {
      neg_exp_a.push_back(-a);
      a_log.push_back(std::log(static_cast<double>(a)));
    }
    const std::vector<float> g = RunGate(z, rows, bias, neg_exp_a, 1, false);
    EXPECT_TRUE(Near(g, ref::KdaGate(ToDouble(z), ToDouble(bias), a_log), test::kGateTolerance));
    EXPECT_TRUE(SameBits(RunGate(z, rows, bias, neg_exp_a, 3, true), g));
  }
}

TEST(KdaGate, ExtremeInputsStayFinite) {
  const std::vector<float> z = {-1e30f, -1e4f, 1e4f, 1e30f};
  const std::vector<float> g = RunGate(z, 1, {0, 0, 0, 0}, {-2.0f}, 1, false);
  EXPECT_EQ(g[0], 0);
  EXPECT_EQ(g[1], 0);
  EXPECT_FLOAT_EQ(g[2], -2e4f);
  EXPECT_FLOAT_EQ(g[3], -2e30f);
}

std::vector<float> RunSigmoid(const std::vector<float>& x, int64_t rows, int threads, bool in_place) {
  KernelRunner runner(threads);
  const int64_t cols = static_cast<int64_t>(x.size()) / rows;
  PaddedMatrix in(rows, cols, x), out(rows, cols);
  Sigmoid(runner.context(), in.view(), in_place ? in.view() : out.view());
  EXPECT_TRUE(in.GapsUntouched());
  EXPECT_TRUE(out.GapsUntouched());
  return in_place ? in.values() : out.values();
}

TEST(Sigmoid, Sweep) {
  std::vector<float> x;
  std::vector<double> expected;
  for (int i = -6000; i <= 6000; ++i) {
    x.push_back(static_cast<float>(i) / 100);
    expected.push_back(ref::Sigmoid(x.back()));
  }
  test::ForEachTarget(
      [&](int64_t) { EXPECT_TRUE(Near(RunSigmoid(x, 1, 1, false), expected, test::kSigmoidTolerance)); });
}

TEST(Sigmoid, ExtremesAndBits) {
  const std::vector<float> y = RunSigmoid({-1e30f, -200, 0, 200, 1e30f}, 1, 1, false);
  EXPECT_TRUE(Near(y, std::vector<double>{0, 0, 0.5, 1, 1}, {.absolute = 1e-30}));
  Random random(42);
  const std::vector<float> x = random.Normals(33 * 7, 10);
  EXPECT_TRUE(SameBits(RunSigmoid(x, 33, 3, true), RunSigmoid(x, 33, 1, false)));
  // An element's bits do not depend on its column.
  EXPECT_TRUE(SameBits(RunSigmoid(x, 1, 1, false), RunSigmoid(x, 33 * 7, 1, false)));
}

}  // namespace
}  // namespace perigee::kernels
