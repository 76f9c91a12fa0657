#include "kernels/sampling/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace perigee {
namespace {

using kernels::Philox4x32;
using kernels::PhiloxCounter;
using kernels::UniformFromKey;

// Known answers published with the generator.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformFromKey, TakesTheFirst53Bits) {
  // From the known answer above: 0xe169c58d6627e8d5 / 2^64, cut to 53 bits.
  EXPECT_EQ(UniformFromKey(0, 0, 0), static_cast<double>(0xe169c58d6627e8d5 >> 11) * 0x1p-53);
}

// Seeds, choices of one request and tokens of one choice all draw different numbers; the same key draws the
// same.
TEST(UniformFromKey, EveryArgumentCounts) {
  std::set<double> seen;
  int drawn = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, uint64_t{8}, uint64_t{7} << 32, ~uint64_t{0}}) {
    for (uint32_t choice = 0; choice < 4; ++choice) {
      for (const uint64_t token : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{1} << 32}) {
        const double u = UniformFromKey(seed, choice, token);
        EXPECT_EQ(u, UniformFromKey(seed, choice, token));
        EXPECT_GE(u, 0);
        EXPECT_LT(u, 1);
        seen.insert(u);
        ++drawn;
      }
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), drawn);
}

// Chi-square over 100 bins, along tokens and along choices: 99 degrees of freedom, mean 99, deviation 14.
TEST(UniformFromKey, IsUniform) {
  constexpr int kBins = 100, kDraws = 100000;
  for (const bool along_choices : {false, true}) {
    std::vector<int> bins(kBins);
    double sum = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double u = along_choices ? UniformFromKey(42, static_cast<uint32_t>(i), 5)
                                     : UniformFromKey(42, 0, static_cast<uint64_t>(i));
      ++bins[static_cast<size_t>(u * kBins)];
      sum += u;
    }
    double chi = 0;
    for (const int n : bins) chi += std::pow(n - kDraws / kBins, 2) / (kDraws / kBins);
    EXPECT_GT(chi, 99 - 4 * 14);
    EXPECT_LT(chi, 99 + 4 * 14);
    EXPECT_NEAR(sum / kDraws, 0.5, 0.004);
  }
}

}  // namespace
}  // namespace perigee
