#include "kernels/draw/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace perigee::kernels {
namespace {

constexpr DrawnMatrix kWhole{.seed = 7, .low = -2, .high = 1, .whole_cols = 40, .rows = 100, .cols = 40};

std::vector<float> Drawn(const DrawnMatrix& m) {
  std::vector<BFloat16> stored(static_cast<size_t>(m.rows * m.cols));
  Draw(m, stored.data(), Device::kCpu);
  std::vector<float> values;
  for (const BFloat16 v : stored) values.push_back(BFloat16ToFloat(v.bits));
  return values;
}

TEST(Draw, FillsItsIntervalEvenly) {
  const std::vector<float> values = Drawn(kWhole);
  double sum = 0, squares = 0;
  for (const float v : values) {
    ASSERT_GE(v, -2);
    ASSERT_LE(v, 1);
    sum += v;
    squares += v * v;
  }
  const double mean = sum / 4000;
  EXPECT_NEAR(mean, -0.5, 0.05);
  EXPECT_NEAR(squares / 4000 - mean * mean, 9.0 / 12, 0.05);
}

TEST(Draw, APartHoldsWhatTheWholeHoldsThere) {
  const std::vector<float> whole = Drawn(kWhole);
  const std::vector<float> part = Drawn(kWhole.Rows(3, 20).Cols(5, 9));
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t c = 0; c < 9; ++c) {
      ASSERT_EQ(part[static_cast<size_t>(r * 9 + c)], whole[static_cast<size_t>((3 + r) * 40 + 5 + c)]);
    }
  }
}

TEST(Draw, AnotherSeedGivesOtherValues) {
  DrawnMatrix other = kWhole;
  other.seed = 8;
  EXPECT_NE(Drawn(kWhole), Drawn(other));
  EXPECT_EQ(Drawn(kWhole), Drawn(kWhole));
}

TEST(Draw, AWeightOfDrawnPiecesIsThatOfStoredOnes) {
  const DrawnMatrix pieces[] = {kWhole.Rows(0, 30), kWhole.Rows(50, 20)};
  std::vector<std::vector<BFloat16>> stored;
  std::vector<StoredMatrix> matrices;
  for (const DrawnMatrix& m : pieces) {
    stored.emplace_back(static_cast<size_t>(m.rows * m.cols));
    Draw(m, stored.back().data(), Device::kCpu);
  }
  for (size_t i = 0; i < 2; ++i)
    matrices.push_back({stored[i].data(), DType::kBF16, pieces[i].rows, pieces[i].cols, pieces[i].cols});
  const PackedWeight drawn = PackedWeight::Draw(pieces, Device::kCpu);
  const PackedWeight packed = PackedWeight::Pack(matrices);
  ASSERT_EQ(drawn.out(), 50);
  ASSERT_EQ(drawn.Bytes(), packed.Bytes());
  EXPECT_EQ(std::memcmp(drawn.Bf16Panel(0), packed.Bf16Panel(0), packed.Bytes()), 0);
}

}  // namespace
}  // namespace perigee::kernels
