#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/sampling/sampling.h"
#include "testing/random.h"
#include "testing/targets.h"

namespace perigee {
namespace {

using kernels::SampleToken;
using kernels::SamplingChoice;
using kernels::UniformFromKey;
using test::ForEachTarget;
using test::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kAlmostOne = 1 - 0x1p-53;

// What may be drawn, in descending order, with cumulative probabilities: everything sorted, in double.
struct Distribution {
  std::vector<int32_t> ids;
  std::vector<double> upto;
};

Distribution Reference(const std::vector<float>& logits, const SamplingChoice& choice) {
  Distribution d;
  d.ids.resize(logits.size());
  std::iota(d.ids.begin(), d.ids.end(), 0);
  std::stable_sort(d.ids.begin(), d.ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (choice.top_k > 0) d.ids.resize(std::min(d.ids.size(), static_cast<size_t>(choice.top_k)));
  double sum = 0;
  for (const int32_t id : d.ids) {
    const double below = static_cast<double>(logits[id]) - logits[d.ids[0]];
    d.upto.push_back(sum += std::exp(below / choice.temperature));
  }
  if (choice.top_p < 1) {
    const double needed = choice.top_p * sum * (1 - 1e-9);
    size_t keep = 0;
    while (d.upto[keep] < needed) ++keep;
    d.ids.resize(keep + 1);
    d.upto.resize(keep + 1);
  }
  for (double& u : d.upto) u /= d.upto.back();
  return d;
}

// The drawn id is the reference's, but for rounding at the border of two ids.
void ExpectDraw(const std::vector<float>& logits, const SamplingChoice& choice, const Distribution& d,
                double u) {
  const int32_t id = SampleToken(logits, choice, u);
  const auto place = std::find(d.ids.begin(), d.ids.end(), id) - d.ids.begin();
  ASSERT_LT(static_cast<size_t>(place), d.ids.size()) << "id " << id << " is cut off, u " << u;
  EXPECT_LT(u, d.upto[static_cast<size_t>(place)] + 1e-5) << "id " << id;
  EXPECT_GE(u, (place > 0 ? d.upto[static_cast<size_t>(place) - 1] : 0) - 1e-5) << "id " << id;
}

TEST(SampleToken, AgainstFullSort) {
  ForEachTarget([&](int64_t) {
    Random random(8);
    for (const int64_t n : {1, 2, 17, 300, 5003}) {
      for (const float temperature : {0.3f, 1.f, 2.5f, 50.f}) {
        for (const int32_t top_k : {0, 1, 5, 1000}) {
          for (const float top_p : {1.f, 0.9f, 0.35f}) {
            const std::vector<float> logits = random.Normals(n, 4);
            const SamplingChoice choice{temperature, top_k, top_p};
            // Borders of the cuts may round either way: compare away from them by construction of the
            // tolerance in ExpectDraw and of the reference's `needed`.
            const Distribution d = Reference(logits, choice);
            for (int i = 0; i < 12; ++i) ExpectDraw(logits, choice, d, random.Uniform());
            ExpectDraw(logits, choice, d, 0);
            ExpectDraw(logits, choice, d, kAlmostOne);
          }
        }
      }
    }
  });
}

TEST(SampleToken, WholeVocabularyFlatAndPeaked) {
  Random random(10);
  for (const double scale : {0.001, 3.0}) {
    const std::vector<float> logits = random.Normals(163840, scale);
    const SamplingChoice choice{1.f, 0, 0.95f};
    Distribution d = Reference(logits, choice);
    for (int i = 0; i < 8; ++i) {
      const double u = random.Uniform() * 0.999;
      const int32_t id = SampleToken(logits, choice, u);
      const auto place = std::find(d.ids.begin(), d.ids.end(), id) - d.ids.begin();
      ASSERT_LT(static_cast<size_t>(place), d.ids.size());
      EXPECT_NEAR(d.upto[static_cast<size_t>(place)], u, 1e-3 + std::exp(logits[id]) / d.ids.size());
    }
  }
}

TEST(SampleToken, TemperatureZeroIsTheLowestLargest) {
  EXPECT_EQ(SampleToken(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, kAlmostOne), 1);
  EXPECT_EQ(SampleToken(std::vector<float>{-0.f, 0.f}, {.temperature = 0}, 0.7), 0);
  EXPECT_EQ(SampleToken(std::vector<float>{-5}, {.temperature = 0}, 0), 0);
  Random random(1);
  std::vector<float> logits = random.Normals(1003);
  logits[1002] = 40;  // in the vector tail
  EXPECT_EQ(SampleToken(logits, {.temperature = 0}, 0.5), 1002);
}

// Near-zero temperatures, top_k 1 and tiny top_p are the largest logit; nothing overflows.
TEST(SampleToken, SharpChoicesAreTheArgmax) {
  const std::vector<float> logits = {-3e38f, 2, 2.0000002f, -1, 80, -2000, 79.99999f, 3e-45f};
  for (const double u : {0.0, 0.5, kAlmostOne}) {
    for (const float temperature : {1e-7f, 1e-9f, 1e-30f, 1e-45f}) {
      EXPECT_EQ(SampleToken(logits, {.temperature = temperature}, u), 4) << temperature;
      const ScopedFlushDenormals flush;  // as on a pool's threads: 1e-45 counts as zero there
      EXPECT_EQ(SampleToken(logits, {.temperature = temperature}, u), 4) << temperature;
    }
    EXPECT_EQ(SampleToken(logits, {.top_k = 1}, u), 4);
    EXPECT_EQ(SampleToken(logits, {.top_p = 1e-6f}, u), 4);
    EXPECT_EQ(SampleToken(logits, {.top_p = 0}, u), 4);
    EXPECT_EQ(SampleToken(logits, {.temperature = 3e38f, .top_k = 1}, u), 4);
  }
}

TEST(SampleToken, CutsInOrder) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 of ids 2, 0, 3, 1.
  std::vector<float> logits;
  for (const double p : {0.3, 0.1, 0.4, 0.2}) logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_EQ(SampleToken(logits, {}, 0.39), 2);
  EXPECT_EQ(SampleToken(logits, {}, 0.41), 0);
  EXPECT_EQ(SampleToken(logits, {}, 0.71), 3);
  EXPECT_EQ(SampleToken(logits, {}, 0.91), 1);
  // top_k 2 leaves 4/7 and 3/7.
  EXPECT_EQ(SampleToken(logits, {.top_k = 2}, 0.57), 2);
  EXPECT_EQ(SampleToken(logits, {.top_k = 2}, 0.58), 0);
  EXPECT_EQ(SampleToken(logits, {.top_k = 2}, kAlmostOne), 0);
  // 0.4 + 0.3 does not reach 0.75, with 0.2 it does: 4/9, 3/9, 2/9.
  EXPECT_EQ(SampleToken(logits, {.top_p = 0.75f}, 0.77), 0);
  EXPECT_EQ(SampleToken(logits, {.top_p = 0.75f}, 0.78), 3);
  EXPECT_EQ(SampleToken(logits, {.top_p = 0.75f}, kAlmostOne), 3);
  // top_p counts what top_k left: 0.5 is reached by 4/7 alone, not by 0.4.
  EXPECT_EQ(SampleToken(logits, {.top_k = 2, .top_p = 0.5f}, kAlmostOne), 2);
  EXPECT_EQ(SampleToken(logits, {.top_p = 0.5f}, kAlmostOne), 0);
}

TEST(SampleToken, TiesGoByAscendingId) {
  const std::vector<float> equal(1000, 0.25f);
  EXPECT_EQ(SampleToken(equal, {}, 0), 0);
  EXPECT_EQ(SampleToken(equal, {}, 0.5), 500);  // an id's share begins where the one before ends
  EXPECT_EQ(SampleToken(equal, {}, 0.5004), 500);
  EXPECT_EQ(SampleToken(equal, {}, kAlmostOne), 999);
  EXPECT_EQ(SampleToken(equal, {.top_k = 10}, kAlmostOne), 9);
  EXPECT_EQ(SampleToken(equal, {.top_k = 10, .top_p = 0.35f}, kAlmostOne), 3);
}

// What has no probability is never drawn, whatever u; NaN has none.
TEST(SampleToken, NothingWithoutProbability) {
  const float nan = std::nanf("");
  const std::vector<float> logits = {-kInfinity, nan, 1, -kInfinity, 0.5f, -200, nan};
  for (const float temperature : {0.1f, 1.f, 3e38f}) {
    for (int i = 0; i <= 200; ++i) {
      const double u = std::min(i / 200.0, kAlmostOne);
      const int32_t id = SampleToken(logits, {.temperature = temperature}, u);
      EXPECT_TRUE(id == 2 || id == 4 || (id == 5 && temperature > 1)) << id;
    }
  }
  for (const double u : {0.0, 0.5, kAlmostOne}) {
    for (const float temperature : {0.f, 1e-9f, 1.f}) {
      const SamplingChoice choice{temperature, 0, 1.f};
      EXPECT_EQ(SampleToken(std::vector<float>(9, nan), choice, u), 0);
      EXPECT_EQ(SampleToken(std::vector<float>(9, -kInfinity), choice, u), 0);
      EXPECT_EQ(SampleToken(std::vector<float>{nan, 3, nan}, choice, u), 1);
      EXPECT_EQ(SampleToken(std::vector<float>{0, kInfinity, 1, nan}, choice, u), 1);
    }
  }
}

// Chi-square of draws keyed as the engine keys them, for several cuts.
TEST(SampleToken, DrawsFollowTheDistribution) {
  Random random(12);
  const std::vector<float> logits = random.Normals(30, 1.2);
  const std::vector<SamplingChoice> choices = {
      {1.f, 0, 1.f}, {0.7f, 8, 1.f}, {1.3f, 0, 0.8f}, {1.f, 12, 0.9f}};
  for (size_t c = 0; c < choices.size(); ++c) {
    SCOPED_TRACE(c);
    const Distribution d = Reference(logits, choices[c]);
    constexpr int kDraws = 20000;
    std::vector<int> seen(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      const double u = UniformFromKey(99 + c, 0, static_cast<uint64_t>(i));
      ++seen[static_cast<size_t>(SampleToken(logits, choices[c], u))];
    }
    double chi = 0, counted = 0;
    int cells = 0;
    for (size_t i = 0; i < d.ids.size(); ++i) {
      const double expected = kDraws * (d.upto[i] - (i > 0 ? d.upto[i - 1] : 0));
      const int n = seen[static_cast<size_t>(d.ids[i])];
      counted += n;
      if (expected < 5) continue;
      chi += (n - expected) * (n - expected) / expected;
      ++cells;
    }
    EXPECT_EQ(counted, kDraws) << "ids outside the cut were drawn";
    // Mean cells - 1, deviation sqrt(2 (cells - 1)).
    EXPECT_LT(chi, cells + 4.5 * std::sqrt(2.0 * cells));
  }
}

// Eight unseeded requests (eight seeds) and the choices of one seeded request differ, and repeat.
TEST(SampleToken, SeedsAndChoicesDiffer) {
  const std::vector<float> logits(5000, 0.f);
  const auto text = [&](uint64_t seed, uint32_t choice) {
    std::vector<int32_t> ids;
    for (uint64_t t = 0; t < 4; ++t) ids.push_back(SampleToken(logits, {}, UniformFromKey(seed, choice, t)));
    return ids;
  };
  std::vector<std::vector<int32_t>> texts;
  for (uint64_t seed = 0; seed < 8; ++seed) texts.push_back(text(seed, 0));
  for (uint32_t choice = 1; choice < 4; ++choice) texts.push_back(text(7, choice));
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(texts[i], texts[j]) << i << " " << j;
  }
  EXPECT_EQ(text(7, 2), texts[9]);
}

}  // namespace
}  // namespace perigee
