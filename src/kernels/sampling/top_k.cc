#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/sampling/sampling.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/top_k.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

constexpr size_t kBlock = 64;

// The first index >= begin that starts 64 elements of which one may exceed the threshold; n if none does.
size_t SkipBelow(const float* x, size_t begin, size_t n, float threshold) {
  const D d;
  const V limit = hn::Set(d, threshold);
  for (size_t block = begin; block < n; block += kBlock) {
    const size_t end = HWY_MIN(block + kBlock, n);
    auto above = hn::FirstN(d, 0);
    for (size_t i = block; i < end; i += kVecLanes) {
      above = hn::Or(above, hn::Gt(LoadUpTo(x + i, end - i), limit));
    }
    if (!hn::AllFalse(d, above)) return block;
  }
  return n;
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels {
namespace {
HWY_EXPORT(SkipBelow);

bool Better(const TopLogit& a, const TopLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// NaN has no place in an order: it ranks with -inf.
float RankValue(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

// The k best in any order. Candidates gather until there are several times k, then the worst are dropped and
// the rest of the row is only searched for values above the k-th.
std::vector<TopLogit> Best(std::span<const float> logits, size_t k) {
  const size_t capacity = std::max<size_t>(4 * k, 256);
  std::vector<TopLogit> best;
  best.reserve(std::min(capacity, logits.size()));
  const auto keep_best = [&] {
    std::nth_element(best.begin(), best.begin() + static_cast<ptrdiff_t>(k - 1), best.end(), Better);
    best.resize(k);
  };
  size_t i = 0;
  for (; i < logits.size() && best.size() < capacity; ++i) {
    best.push_back({static_cast<int32_t>(i), RankValue(logits[i])});
  }
  while (best.size() > k) {
    keep_best();
    const float worst = best[k - 1].logit;
    // A later element that equals the k-th loses by its id.
    for (i = HWY_DYNAMIC_DISPATCH(SkipBelow)(logits.data(), i, logits.size(), worst);
         i < logits.size() && best.size() < capacity;) {
      const size_t end = std::min({i + 64, logits.size(), i + (capacity - best.size())});
      for (; i < end; ++i) {
        if (logits[i] > worst) best.push_back({static_cast<int32_t>(i), logits[i]});
      }
      i = HWY_DYNAMIC_DISPATCH(SkipBelow)(logits.data(), i, logits.size(), worst);
    }
  }
  return best;
}
}  // namespace

std::vector<TopLogit> TopK(std::span<const float> logits, int32_t k) {
  PERIGEE_CHECK(k >= 0);
  const size_t count = std::min(static_cast<size_t>(k), logits.size());
  if (count == 0) return {};
  std::vector<TopLogit> best = Best(logits, count);
  std::sort(best.begin(), best.end(), Better);
  for (TopLogit& t : best) t.logit = logits[static_cast<size_t>(t.id)];
  return best;
}

}  // namespace perigee::kernels
#endif  // HWY_ONCE
