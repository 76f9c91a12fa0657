#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sampling/sampling.h"
#include "testing/random.h"
#include "testing/targets.h"

namespace perigee {
namespace {

using kernels::TopK;
using kernels::TopLogit;
using test::ForEachTarget;
using test::Random;

std::vector<int32_t> ReferenceIds(const std::vector<float>& logits, int32_t k) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto rank = [&](int32_t id) {
    const float x = logits[static_cast<size_t>(id)];
    return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x;
  };
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
  ids.resize(std::min(ids.size(), static_cast<size_t>(k)));
  return ids;
}

void ExpectTopK(const std::vector<float>& logits, int32_t k) {
  const std::vector<TopLogit> top = TopK(logits, k);
  const std::vector<int32_t> expected = ReferenceIds(logits, k);
  ASSERT_EQ(top.size(), expected.size()) << logits.size() << " logits, k " << k;
  for (size_t i = 0; i < top.size(); ++i) {
    ASSERT_EQ(top[i].id, expected[i]) << logits.size() << " logits, k " << k << ", place " << i;
    ASSERT_EQ(std::memcmp(&top[i].logit, &logits[static_cast<size_t>(top[i].id)], sizeof(float)), 0);
  }
}

TEST(TopK, AgainstFullSortOnEveryTarget) {
  ForEachTarget([&](int64_t) {
    Random random(4);
    for (const int64_t n : {1, 2, 5, 63, 64, 65, 255, 256, 257, 1000, 5003}) {
      const std::vector<float> smooth = random.Normals(n);
      std::vector<float> ties = random.Normals(n);
      for (float& x : ties) x = std::round(x * 2) / 2;  // a dozen distinct values
      for (const int32_t k : {0, 1, 2, 3, 20, 64, 300, 5002, 6000}) {
        ExpectTopK(smooth, k);
        ExpectTopK(ties, k);
      }
    }
  });
}

TEST(TopK, HardOrders) {
  constexpr int n = 4000;
  std::vector<float> ascending(n), descending(n);
  std::iota(ascending.begin(), ascending.end(), -100.f);
  std::copy(ascending.rbegin(), ascending.rend(), descending.begin());
  for (const int32_t k : {1, 20, 100}) {
    ExpectTopK(ascending, k);
    ExpectTopK(descending, k);
    ExpectTopK(std::vector<float>(n, 1.5f), k);
  }
}

TEST(TopK, WholeVocabulary) {
  Random random(6);
  ExpectTopK(random.Normals(163840, 5), 20);
}

TEST(TopK, ZerosAreEqualAndNaNIsLast) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  ExpectTopK({-0.f, 0.f, -0.f, 0.f}, 3);
  ExpectTopK({nan, 1, nan, inf, -inf}, 5);
  ExpectTopK(std::vector<float>(700, nan), 20);
  std::vector<float> late(700, nan);
  late[690] = -5;
  ExpectTopK(late, 2);
}

}  // namespace
}  // namespace perigee
