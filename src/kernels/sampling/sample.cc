#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "base/check.h"
#include "kernels/sampling/philox.h"
#include "kernels/sampling/sampling.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/sample.cc"
#include <hwy/foreach_target.h>
// Order matters: the target header sets the macros that the next one needs.
#include <hwy/highway.h>
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels::HWY_NAMESPACE {

// The largest element that is not NaN; -inf if there is none.
float LargestOf(const float* x, size_t n) {
  const Lanes16 nothing = Set16(-std::numeric_limits<float>::infinity());
  Lanes16 maxima = nothing;
  for (size_t i = 0; i < n; i += 16) {
    maxima = Max16(maxima, FirstLanes16(LoadUpTo16(x + i, n - i), n - i, nothing));
  }
  return ReduceMax16(maxima);
}

// w = exp((x - max) / temperature), 1 where x is the maximum, 0 where it is NaN.
void SoftmaxWeights(const float* x, size_t n, float max, float temperature, float* w) {
  const D d;
  const V top = hn::Set(d, max);
  const V t = hn::Set(d, temperature);
  for (size_t i = 0; i < n; i += kVecLanes) {
    const V v = LoadUpTo(x + i, n - i);
    // inf - inf is no number, hence the selection and not just the difference.
    const V below = hn::IfThenElseZero(hn::Lt(v, top), hn::Sub(v, top));
    StoreUpTo(hn::IfThenElseZero(hn::Le(v, top), Exp(hn::Div(below, t))), w + i, n - i);
  }
}

}  // namespace perigee::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels {
namespace {
HWY_EXPORT(LargestOf);
HWY_EXPORT(SoftmaxWeights);

// One row's ids in descending order of probability, sorted only where it is looked at: ids are spread over
// buckets by logit, and a walk passes whole buckets by their mass. Ids of probability zero are left out.
class DescendingIds {
 public:
  DescendingIds(std::span<const float> logits, float max, float temperature)
      : logits_(logits), weights_(logits.size()), bucket_of_(logits.size(), kNone) {
    HWY_DYNAMIC_DISPATCH(SoftmaxWeights)(logits.data(), logits.size(), max, temperature, weights_.data());
    float lowest = max;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (weights_[i] > 0) lowest = std::min(lowest, logits[i]);
    }
    const double range = lowest < max ? static_cast<double>(max) - lowest : 1;
    const double scale = (kBuckets - 1) / range;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!(weights_[i] > 0)) continue;
      const double below = logits[i] < max ? static_cast<double>(max) - logits[i] : 0;
      const auto bucket = static_cast<size_t>(below * scale);
      bucket_of_[i] = static_cast<uint16_t>(bucket);
      mass_[bucket] += weights_[i];
      ++count_[bucket];
    }
  }

  struct Prefix {
    int64_t count = 0;
    double mass = 0;
    int32_t last = -1;  // its last id
  };

  // The shortest prefix whose mass is enough; if none is, the one of `limit` ids or all.
  template <typename Enough>
  Prefix Shortest(int64_t limit, const Enough& enough) {
    Prefix prefix;
    size_t last_bucket = 0;
    for (size_t b = 0; b < kBuckets; ++b) {
      if (count_[b] == 0) continue;
      last_bucket = b;
      if (prefix.count + count_[b] <= limit && !enough(prefix.mass + mass_[b])) {
        prefix.count += count_[b];
        prefix.mass += mass_[b];
        continue;
      }
      for (const int32_t id : Sorted(b)) {
        if (prefix.count == limit) return prefix;
        prefix.mass += weights_[static_cast<size_t>(id)];
        prefix.last = id;
        ++prefix.count;
        if (enough(prefix.mass)) return prefix;
      }
    }
    prefix.last = Sorted(last_bucket).back();
    return prefix;
  }

 private:
  static constexpr size_t kBuckets = 4096;
  static constexpr uint16_t kNone = kBuckets;

  const std::vector<int32_t>& Sorted(size_t bucket) {
    const auto [entry, is_new] = sorted_.try_emplace(bucket);
    std::vector<int32_t>& ids = entry->second;
    if (!is_new) return ids;
    ids.reserve(static_cast<size_t>(count_[bucket]));
    for (size_t i = 0; i < bucket_of_.size(); ++i) {
      if (bucket_of_[i] == bucket) ids.push_back(static_cast<int32_t>(i));
    }
    const auto before = [this](int32_t a, int32_t b) {
      const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    };
    std::sort(ids.begin(), ids.end(), before);
    return ids;
  }

  std::span<const float> logits_;
  std::vector<float> weights_;
  std::vector<uint16_t> bucket_of_;
  std::array<double, kBuckets> mass_{};
  std::array<int64_t, kBuckets> count_{};
  std::map<size_t, std::vector<int32_t>> sorted_;
};
}  // namespace

int32_t SampleToken(std::span<const float> logits, const SamplingChoice& choice, double u) {
  PERIGEE_CHECK(!logits.empty() && choice.temperature >= 0 && u >= 0 && u < 1);
  const float max = HWY_DYNAMIC_DISPATCH(LargestOf)(logits.data(), logits.size());
  // Nothing but NaN and -inf: there is no distribution, the answer only has to be the same every time.
  if (max == -std::numeric_limits<float>::infinity()) return 0;
  if (choice.temperature == 0) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
  }
  DescendingIds ids(logits, max, choice.temperature);
  int64_t limit = choice.top_k > 0 ? choice.top_k : static_cast<int64_t>(logits.size());
  DescendingIds::Prefix kept = ids.Shortest(limit, [](double) { return false; });
  if (choice.top_p < 1) {
    const double needed = static_cast<double>(choice.top_p) * kept.mass;
    kept = ids.Shortest(kept.count, [needed](double mass) { return mass >= needed; });
  }
  const double target = u * kept.mass;
  return ids.Shortest(kept.count, [target](double mass) { return mass > target; }).last;
}

double UniformFromKey(uint64_t seed, uint32_t choice, uint64_t token_index) {
  const PhiloxCounter bits =
      Philox4x32({static_cast<uint32_t>(token_index), static_cast<uint32_t>(token_index >> 32), choice, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t word = (uint64_t{bits[1]} << 32) | bits[0];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace perigee::kernels
#endif  // HWY_ONCE
