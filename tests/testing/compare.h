#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>
#include <vector>

namespace perigee::test {

// How far two arrays are apart. NaN agrees with NaN and an infinity with the same infinity, in place; those
// entries count for nothing else.
struct Difference {
  int64_t count = 0;
  double max_abs = 0;
  double max_rel = 0;        // |a - e| / |e| over entries with e != 0
  double relative_rmse = 0;  // sqrt(sum (a - e)^2 / sum e^2)
  double cosine = 1;
  double max_expected = 0;  // largest |e|
  int64_t worst = -1;       // index of max_abs
  int64_t non_finite = -1;  // first index where only one side is finite, or the infinities or NaN differ
};

template <typename A, typename E>
Difference Compare(const A& actual, const E& expected) {
  Difference d;
  d.count = static_cast<int64_t>(expected.size());
  double error = 0, aa = 0, ee = 0, ae = 0;
  for (int64_t i = 0; i < d.count; ++i) {
    const double a = actual[i], e = expected[i];
    if (!std::isfinite(a) || !std::isfinite(e)) {
      if (!(a == e || (std::isnan(a) && std::isnan(e))) && d.non_finite < 0) d.non_finite = i;
      continue;
    }
    const double abs = std::fabs(a - e);
    if (abs > d.max_abs || d.worst < 0) {
      d.max_abs = abs;
      d.worst = i;
    }
    if (e != 0) d.max_rel = std::fmax(d.max_rel, abs / std::fabs(e));
    d.max_expected = std::fmax(d.max_expected, std::fabs(e));
    error += abs * abs;
    aa += a * a;
    ee += e * e;
    ae += a * e;
  }
  d.relative_rmse =
      ee > 0 ? std::sqrt(error / ee) : (error > 0 ? std::numeric_limits<double>::infinity() : 0);
  if (aa > 0 && ee > 0) d.cosine = ae / std::sqrt(aa * ee);
  return d;
}

// What a kernel may differ from its reference by. An entry e may be off by absolute + of_max * (largest
// |expected|) + relative * |e|; `relative_rmse` bounds all of them together.
struct Tolerance {
  double absolute = 0;
  double of_max = 0;
  double relative = 0;
  double relative_rmse = std::numeric_limits<double>::infinity();
};

// EXPECT_TRUE(Near(actual, expected, tolerance)) for arrays of float or double of the same size.
template <typename A, typename E>
::testing::AssertionResult Near(const A& actual, const E& expected, const Tolerance& tolerance) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " entries, expected " << expected.size();
  }
  const Difference d = Compare(actual, expected);
  int64_t bad = -1, bad_count = 0;
  for (int64_t i = 0; i < d.count; ++i) {
    const double a = actual[i], e = expected[i];
    if (!std::isfinite(a) || !std::isfinite(e)) continue;
    const double allowed =
        tolerance.absolute + tolerance.of_max * d.max_expected + tolerance.relative * std::fabs(e);
    if (std::fabs(a - e) <= allowed) continue;
    if (bad < 0) bad = i;
    ++bad_count;
  }
  if (d.non_finite < 0 && bad < 0 && d.relative_rmse <= tolerance.relative_rmse) {
    return ::testing::AssertionSuccess() << "relative RMSE " << d.relative_rmse << ", max abs " << d.max_abs;
  }
  std::ostringstream text;
  text.precision(9);
  const auto entry = [&](const char* what, int64_t i) {
    text << "\n  " << what << " [" << i << "]: " << static_cast<double>(actual[i]) << ", expected "
         << static_cast<double>(expected[i]);
  };
  text << d.count << " entries: max abs " << d.max_abs << ", max rel " << d.max_rel << ", relative RMSE "
       << d.relative_rmse << " (allowed " << tolerance.relative_rmse << "), cosine " << d.cosine
       << ", largest expected " << d.max_expected;
  if (d.non_finite >= 0) entry("NaN or infinity out of place at", d.non_finite);
  if (bad >= 0) {
    text << "\n  " << bad_count << " entries out of tolerance";
    entry("first at", bad);
    entry("worst at", d.worst);
  }
  return ::testing::AssertionFailure() << text.str();
}

// EXPECT_TRUE(SameBits(a, b)) for float arrays: equal bits everywhere (NaN and the sign of zero included).
template <typename A, typename B>
::testing::AssertionResult SameBits(const A& a, const B& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " entries against " << b.size();
  int64_t first = -1, count = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(a.size()); ++i) {
    const float x = a[i], y = b[i];
    if (std::memcmp(&x, &y, sizeof x) == 0) continue;
    if (first < 0) first = i;
    ++count;
  }
  if (first < 0) return ::testing::AssertionSuccess();
  std::ostringstream text;
  text << std::hexfloat << a[first] << " against " << b[first];
  return ::testing::AssertionFailure()
         << count << " of " << a.size() << " entries differ, first at [" << first << "]: " << text.str();
}

}  // namespace perigee::test
