#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/moe/moe.h"
#include "ref/kda_ref.h"
#include "ref/moe_ref.h"
#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/targets.h"

namespace perigee::kernels {
namespace {

using test::KernelRunner;
using test::Near;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;
using test::ToDouble;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::Not;

// kernels::Routing with memory of its own.
struct Choice {
  int64_t top_k = 0;
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice Route(const std::vector<float>& logits, const std::vector<float>& bias, const RouterOptions& options,
             int threads = 2) {
  const int64_t experts = static_cast<int64_t>(bias.size());
  const int64_t rows = static_cast<int64_t>(logits.size()) / experts;
  KernelRunner runner(threads);
  const PaddedMatrix m(rows, experts, logits);
  const Routing r = RouteTopK(runner.context(), m.view(), bias, options);
  return {r.top_k, {r.experts.begin(), r.experts.end()}, {r.weights.begin(), r.weights.end()}};
}

TEST(Router, WorkedExampleOfTheSpecification) {
  const Choice r = Route({0, 1, -1, 2, 0.5f, -0.5f}, {0.3f, -0.2f, 0.6f, -0.3f, 0, 0.1f}, {2, true, 2.446f});
  EXPECT_EQ(r.top_k, 2);
  EXPECT_THAT(r.experts, ElementsAre(0, 2));
  EXPECT_TRUE(Near(r.weights, std::vector<double>{1.590498, 0.855502}, {.absolute = 1e-6}));
}

// Four experts, two chosen, made so that each way to misread the rule picks others.
TEST(Router, EachMisreadingPicksOtherExperts) {
  const std::vector<float> logits = {2.5f, -2, 3, -1.5f}, bias = {-0.1f, 0.7f, -0.3f, 0};
  const Choice r = Route(logits, bias, {2, true, 2});
  EXPECT_THAT(r.experts, ElementsAre(0, 1));
  const double s0 = ref::Sigmoid(2.5), s1 = ref::Sigmoid(-2);
  EXPECT_TRUE(
      Near(r.weights, std::vector<double>{2 * s0 / (s0 + s1), 2 * s1 / (s0 + s1)}, {.absolute = 1e-6}));

  double softmax_sum = 0;
  for (float l : logits) softmax_sum += std::exp(l);
  using Score = std::function<double(double logit, double b)>;
  const std::vector<std::pair<std::string, Score>> misreadings = {
      {"no bias", [](double l, double) { return ref::Sigmoid(l); }},
      {"bias subtracted", [](double l, double b) { return ref::Sigmoid(l) - b; }},
      {"softmax", [&](double l, double b) { return std::exp(l) / softmax_sum + b; }},
      {"logit plus bias", [](double l, double b) { return l + b; }},
      {"bias inside the sigmoid", [](double l, double b) { return ref::Sigmoid(l + b); }},
      {"bias as a factor", [](double l, double b) { return ref::Sigmoid(l) * (1 + b); }}};
  for (const auto& [name, score] : misreadings) {
    std::vector<int32_t> order = {0, 1, 2, 3};
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return score(logits[a], bias[a]) > score(logits[b], bias[b]);
    });
    std::sort(order.begin(), order.begin() + 2);
    EXPECT_THAT(r.experts, Not(ElementsAre(order[0], order[1]))) << name;
  }
}

TEST(Router, RenormalisationAndFactorAreSeparate) {
  const std::vector<float> logits = {2.5f, -2, 3, -1.5f}, bias = {-0.1f, 0.7f, -0.3f, 0};
  const double s0 = ref::Sigmoid(2.5), s1 = ref::Sigmoid(-2);
  EXPECT_TRUE(
      Near(Route(logits, bias, {2, false, 1}).weights, std::vector<double>{s0, s1}, {.absolute = 1e-6}));
  EXPECT_TRUE(Near(Route(logits, bias, {2, false, 3}).weights, std::vector<double>{3 * s0, 3 * s1},
                   {.absolute = 1e-6}));
  EXPECT_TRUE(
      Near(Route(logits, bias, {1, true, 2.446f}).weights, std::vector<double>{2.446}, {.absolute = 1e-6}));
}

TEST(Router, TiesGoToTheLowerIndex) {
  const std::vector<float> none(6, 0.0f);
  EXPECT_THAT(Route({1, 1, 1, 1, 1, 1}, none, {3}).experts, ElementsAre(0, 1, 2));
  EXPECT_THAT(Route({0, 1, 0, 1, 1, 1}, none, {3}).experts, ElementsAre(1, 3, 4));
  EXPECT_THAT(Route({5, 0, 0, 0, 0, 5}, none, {3}).experts, ElementsAre(0, 1, 5));
  EXPECT_THAT(Route({-0.0f, 0, -0.0f, 0, 0, 0}, none, {2}).experts, ElementsAre(0, 1));
  // Saturated scores are equal.
  EXPECT_THAT(Route({100, 200, 300, 90, 0, 0}, none, {2}).experts, ElementsAre(0, 1));
  // Equal sums of different parts.
  EXPECT_THAT(Route({0, 0, 0, 0, 0, 0}, {0.25f, 0.5f, 0.25f, 0.5f, 0.25f, 0}, {3}).experts,
              ElementsAre(0, 1, 3));
}

TEST(Router, NegativeBiasedScoresAreStillRanked) {
  const std::vector<float> bias = {-5, -4, -3, -2};
  EXPECT_THAT(Route({0, 0, 0, 0}, bias, {2}).experts, ElementsAre(2, 3));
}

TEST(Router, TinyScoresAreRenormalisedWithoutBlowingUp) {
  // The 1e-20 beside the sum decides when every score underflows.
  const Choice r = Route({-200, -200, -200, -200}, {0, 0, 0, 0}, {2, true, 2});
  EXPECT_THAT(r.experts, ElementsAre(0, 1));
  for (float w : r.weights) {
    EXPECT_GE(w, 0);
    EXPECT_LE(w, 1);
  }
}

TEST(Router, RandomRowsAgainstTheReference) {
  Random random(71);
  for (const auto& [experts, top_k] :
       std::vector<std::pair<int64_t, int64_t>>{{256, 8}, {16, 4}, {7, 7}, {33, 2}}) {
    const int64_t rows = 65;
    const std::vector<float> logits = random.Normals(rows * experts, 3), bias = random.Normals(experts, 0.2);
    std::vector<int64_t> chosen;
    std::vector<double> weights;
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> l(logits.begin() + row * experts, logits.begin() + (row + 1) * experts);
      const ref::Choice choice = ref::Route(ToDouble(l), ToDouble(bias), top_k, true, 2.446f);
      chosen.insert(chosen.end(), choice.experts.begin(), choice.experts.end());
      weights.insert(weights.end(), choice.weights.begin(), choice.weights.end());
    }
    test::ForEachTarget([&](int64_t) {
      const Choice routing = Route(logits, bias, {top_k, true, 2.446f}, 2);
      EXPECT_THAT(routing.experts, ElementsAreArray(chosen));
      EXPECT_TRUE(Near(routing.weights, weights, {.relative = 2e-6}));
    });
    const Choice r = Route(logits, bias, {top_k, true, 2.446f}, 1);
    const Choice threaded = Route(logits, bias, {top_k, true, 2.446f}, 3);
    EXPECT_EQ(threaded.experts, r.experts);
    EXPECT_TRUE(SameBits(threaded.weights, r.weights));
    const Choice alone =
        Route({logits.begin() + 40 * experts, logits.begin() + 41 * experts}, bias, {top_k, true, 2.446f});
    EXPECT_TRUE(SameBits(alone.weights,
                         std::vector<float>(r.weights.begin() + 40 * top_k, r.weights.begin() + 41 * top_k)));
  }
}

}  // namespace
}  // namespace perigee::kernels
