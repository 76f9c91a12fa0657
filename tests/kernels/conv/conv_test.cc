#include "kernels/conv/conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ref/conv_ref.h"
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
using test::ToDouble;

constexpr test::Tolerance kConvTolerance{.of_max = 1e-6, .relative = 2e-6};

// The specification's check, with one piece and with pieces of 1, 2 and 3 rows.
TEST(CausalConv1d, SpecificationExample) {
  const KernelRunner runner;
  const std::vector<float> taps = {0.1f, -0.2f, 0.3f, 0.5f}, x = {1, 2, -1, 4, 0.5f};
  const std::vector<double> expected = {0.31123, 1.02159, -0.04750, 1.12306, 1.59864};
  for (const int64_t piece : {1, 2, 3, 5}) {
    std::vector<float> tail(3), y(5);
    for (int64_t begin = 0; begin < 5; begin += piece) {
      const std::vector<Segment> segment = {{begin, std::min<int64_t>(piece, 5 - begin)}};
      kernels::CausalConv1d(runner.context(), {x.data(), 5, 1}, {taps.data(), 4, 1}, segment,
                            {.conv = tail.data()}, {y.data(), 5, 1});
    }
    EXPECT_TRUE(Near(y, expected, {.absolute = 5e-6})) << piece;
    EXPECT_EQ(tail, (std::vector<float>{-1, 4, 0.5f})) << piece;
  }
}

struct Sequence {
  int64_t begin;
  int64_t length;
};

// Several sequences of 1, 2, 3 and more rows in one call, with gaps between them, against the reference.
TEST(CausalConv1d, PackedSequencesWithTails) {
  const KernelRunner runner;
  ForEachTarget([&](int64_t) {
    for (const int64_t width : {2, 3, 4, 5, 8}) {
      for (const int64_t channels : {1, 3, 16, 23, 96}) {
        SCOPED_TRACE(testing::Message() << width << " taps, " << channels << " channels");
        Random random(static_cast<uint64_t>(width * 1000 + channels));
        const std::vector<Sequence> sequences = {{9, 1}, {0, 2}, {4, 3}, {11, 9}, {20, 1}, {22, 4}};
        const int64_t rows = 27;
        const std::vector<float> values = random.Normals(rows * channels, 2);
        const std::vector<float> taps = random.Normals(width * channels);
        const PaddedMatrix x(rows, channels, values), tap_matrix(width, channels, taps, 1);
        PaddedMatrix y(rows, channels, std::vector<float>(static_cast<size_t>(rows * channels), -7.f));
        const auto slots = static_cast<int64_t>(sequences.size());
        PaddedMatrix tails(slots, (width - 1) * channels, random.Normals(slots * (width - 1) * channels));
        const PaddedMatrix old_tails = tails;
        std::vector<Segment> segments;
        for (size_t s = 0; s < sequences.size(); ++s) {
          segments.push_back({.q_begin = sequences[s].begin,
                              .q_len = sequences[s].length,
                              .slot = static_cast<int32_t>(slots) - 1 - static_cast<int32_t>(s)});
        }
        kernels::CausalConv1d(runner.context(), x.view(), tap_matrix.view(), segments,
                              {.conv = tails.view().data, .conv_stride = tails.view().stride}, y.view());
        EXPECT_TRUE(tails.GapsUntouched());

        std::vector<bool> covered(static_cast<size_t>(rows));
        for (size_t s = 0; s < sequences.size(); ++s) {
          const auto [begin, length] = sequences[s];
          const std::vector<double> input(values.begin() + begin * channels,
                                          values.begin() + (begin + length) * channels);
          std::vector<double> tail = ToDouble(old_tails.row(segments[s].slot));
          const std::vector<double> expected = ref::CausalConv(channels, input, ToDouble(taps), tail);
          std::vector<float> actual;
          for (int64_t t = begin; t < begin + length; ++t) {
            const std::vector<float> row = y.row(t);
            actual.insert(actual.end(), row.begin(), row.end());
            covered[static_cast<size_t>(t)] = true;
          }
          EXPECT_TRUE(Near(actual, expected, kConvTolerance)) << "sequence " << s;
          EXPECT_EQ(ToDouble(tails.row(segments[s].slot)), tail) << "sequence " << s;
        }
        for (int64_t t = 0; t < rows; ++t) {
          if (!covered[static_cast<size_t>(t)]) {
            EXPECT_EQ(y.row(t), std::vector<float>(static_cast<size_t>(channels), -7.f)) << t;
          }
        }
        EXPECT_TRUE(y.GapsUntouched());
      }
    }
  });
}

// A prompt cut anywhere, on any number of threads and vector widths, gives the same bits and the same tail.
TEST(CausalConv1d, PiecesAndThreadsAgreeToTheBit) {
  constexpr int64_t kRows = 100, kChannels = 333, kWidth = 4;
  Random random(11);
  const std::vector<float> x = random.Normals(kRows * kChannels), taps = random.Normals(kWidth * kChannels);
  std::vector<float> whole, whole_tail;
  ForEachTarget([&](int64_t target) {
    if (!test::HasFusedMultiplyAdd(target)) return;
    for (const int threads : {1, 2, 3}) {
      const KernelRunner runner(threads);
      for (const int64_t piece : {100, 64, 3, 2, 1}) {
        std::vector<float> y(x.size()), tail((kWidth - 1) * kChannels);
        for (int64_t begin = 0; begin < kRows; begin += piece) {
          const std::vector<Segment> segment = {{begin, std::min(piece, kRows - begin)}};
          kernels::CausalConv1d(runner.context(), {x.data(), kRows, kChannels},
                                {taps.data(), kWidth, kChannels}, segment, {.conv = tail.data()},
                                {y.data(), kRows, kChannels});
        }
        if (whole.empty()) {
          whole = y;
          whole_tail = tail;
        }
        EXPECT_TRUE(SameBits(y, whole)) << piece << " rows a piece, " << threads << " threads";
        EXPECT_TRUE(SameBits(tail, whole_tail)) << piece << " rows a piece, " << threads << " threads";
      }
    }
  });
  ASSERT_FALSE(whole.empty());
}

}  // namespace
}  // namespace perigee
