// The references against figures that were worked out elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ref/conv_ref.h"
#include "ref/gemm_ref.h"
#include "ref/kda_ref.h"
#include "ref/mla_ref.h"
#include "ref/moe_ref.h"
#include "ref/norm_ref.h"

namespace perigee::ref {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;
using Doubles = std::vector<double>;

TEST(KdaRef, WorkedExampleOfThreeTokens) {
  // The example gives unit-length keys and unit-length unscaled queries; the 1e-6 inside the root is below
  // its eight digits only up to 5e-7.
  const std::vector<double> k = {0.6, 0.8, 1, 0, 0.8, -0.6}, q = {0.8, 0.6, 0.6, -0.8, 0, 1};
  const std::vector<double> v = {1, 2, 3, -1, 0.5, 2, 0.25, -2, 1}, g = {-0.1, -0.7, -0.5, -0.2, -1.5, -0.05};
  std::vector<double> s = {0.2, -0.4, 0.1, 0.5, 0.3, -0.6};
  const std::vector<double> o = Kda({1, 2, 3}, q, k, v, g, {0.5, 0.9, 0.25}, s);
  EXPECT_THAT(
      o, Pointwise(DoubleNear(3e-6), Doubles{0.44285148, 0.57054185, 1.00548479, -0.61517166, -0.25986270,
                                             0.33870532, 0.22018863, 0.71616235, 0.41815836}));
  EXPECT_THAT(s, Pointwise(DoubleNear(3e-6), Doubles{-0.06516396, -0.22026598, 0.64044352, 0.31139375,
                                                     1.01280651, 0.59136522}));
}

TEST(KdaRef, GateValues) {
  const std::vector<double> g = KdaGate({-2.5, -0.5, 2.5, 24.5}, {0.5}, {std::log(4.0)});
  EXPECT_THAT(
      g, Pointwise(DoubleNear(1e-6), Doubles{-4 * std::log1p(std::exp(-2.0)), -2.772589, -12.194349, -100}));
  EXPECT_NEAR(g[0], -0.507712, 1e-6);
}

TEST(ConvRef, WorkedExampleAndTail) {
  std::vector<double> tail(3);
  const std::vector<double> taps = {0.1, -0.2, 0.3, 0.5};
  const std::vector<double> y = CausalConv(1, {1, 2, -1, 4, 0.5}, taps, tail);
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-5), Doubles{0.31123, 1.02159, -0.04750, 1.12306, 1.59864}));
  EXPECT_THAT(tail, ElementsAre(-1, 4, 0.5));
  CausalConv(1, {7}, taps, tail);
  EXPECT_THAT(tail, ElementsAre(4, 0.5, 7));
}

TEST(MoeRef, WorkedExampleOfTheRouter) {
  const Choice c = Route({0, 1, -1, 2, 0.5, -0.5}, {0.3, -0.2, 0.6, -0.3, 0, 0.1}, 2, true, 2.446);
  EXPECT_THAT(c.experts, ElementsAre(0, 2));
  EXPECT_THAT(c.weights, Pointwise(DoubleNear(1e-6), Doubles{1.590498, 0.855502}));
}

TEST(MoeRef, SharedExpertIsNotWeighted) {
  const Mlp one{{1}, {1}, {1}}, ten{{1}, {1}, {10}};
  EXPECT_NEAR(Moe({one, ten}, one, {{1}, {0.5}}, {2})[0], 6 * 2 * Silu(2), 1e-12);
}

TEST(MlaRef, TwoKeysByHand) {
  // One head, nope 1, rope 1, value 1, rank 2: key = first latent, value = second.
  const std::vector<double> kv_b = {1, 0, 0, 1};
  const std::vector<double> o = Mla({1, 1, 1, 1, 2}, {3, 2, 3, 2}, {1, 10, -1, 20}, {0.5, 0.25}, kv_b);
  const double s0 = (3 + 1) / std::sqrt(2.0), s1 = (-3 + 0.5) / std::sqrt(2.0);
  EXPECT_THAT(o, Pointwise(DoubleNear(1e-12), Doubles{10, 10 + 10 / (1 + std::exp(s0 - s1))}));
}

TEST(NormRef, ByHand) {
  EXPECT_THAT(RmsNorm({3, 4, 0, 0}, {2, 1}, 0.5),
              Pointwise(DoubleNear(1e-12), Doubles{6 / std::sqrt(13.0), 4 / std::sqrt(13.0), 0, 0}));
  EXPECT_THAT(GatedRmsNorm({3, 4}, {0, std::log(3.0)}, {1, 1}, 0.5),
              Pointwise(DoubleNear(1e-12), Doubles{1.5 / std::sqrt(13.0), 3 / std::sqrt(13.0)}));
}

TEST(GemmRef, TreeOfParts) {
  // 1 and 2^-24 vanish against each other in one order only.
  const std::vector<float> x = {1, 1, 1, 1}, w = {1, 0x1p-24f, 0x1p-24f, 0};
  const std::vector<int64_t> chain = {0, 4}, parts = {0, 1, 2, 3, 4};
  EXPECT_EQ(ProductChains(4, x, w, chain)[0], 1.0f);
  const std::vector<float> w2 = {1, 0, 0x1p-24f, 0x1p-24f};
  EXPECT_EQ(ProductChains(4, x, w2, chain)[0], 1.0f);
  EXPECT_EQ(ProductChains(4, x, w2, parts)[0], 1.0f + 0x1p-23f);
  EXPECT_THAT(Product(2, {1, 2, 3, 4}, {1, 0, 2, 1}), ElementsAre(1, 4, 3, 10));
}

}  // namespace
}  // namespace perigee::ref
