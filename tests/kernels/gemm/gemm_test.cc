#include "kernels/gemm/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "ref/gemm_ref.h"
#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/stored_weights.h"
#include "testing/targets.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using test::ForEachTarget;
using test::KernelRunner;
using test::Near;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;
using test::StoredWeights;
using test::ToDouble;
using ::testing::ElementsAre;

struct Case {
  int64_t rows, in, out;
};

// Odd sizes around panels of 16, register tiles and one long chain.
const Case kCases[] = {{1, 1, 1},   {1, 7, 16},  {1, 192, 70}, {2, 33, 15}, {3, 64, 17},   {4, 300, 31},
                       {5, 129, 1}, {7, 65, 33}, {8, 16, 48},  {13, 2, 70}, {17, 257, 64}, {66, 40, 50}};

std::vector<float> RunGemm(const PackedWeight& weight, const PaddedMatrix& x, int64_t rows, int threads,
                           const std::vector<int64_t>* bounds = nullptr) {
  KernelRunner runner(threads);
  PaddedMatrix y(rows, weight.out());
  if (bounds) {
    GemmInParts(runner.context(), x.view(), weight, *bounds, y.view());
  } else {
    Gemm(runner.context(), x.view(), weight, y.view());
  }
  EXPECT_TRUE(y.GapsUntouched());
  return y.values();
}

class GemmDTypeTest : public ::testing::TestWithParam<DType> {};

TEST_P(GemmDTypeTest, EqualsTheChainOfMultiplyAdds) {
  Random random(11);
  for (const auto& [rows, in, out] : kCases) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << in << " -> " << out);
    const StoredWeights w(random, GetParam(), out, in, 0.5);
    const std::vector<float> x = random.Normals(rows * in);
    const PackedWeight packed = PackedWeight::Pack(w.matrix());
    EXPECT_EQ(packed.out(), out);
    EXPECT_EQ(packed.in(), in);
    EXPECT_EQ(packed.is_bf16(), GetParam() == DType::kBF16);
    const std::vector<double> expected = ref::Product(in, ToDouble(x), ToDouble(w.values()));
    ForEachTarget([&](int64_t target) {
      const std::vector<float> y = RunGemm(packed, PaddedMatrix(rows, in, x), rows, 2);
      const bool fused = test::HasFusedMultiplyAdd(target);
      EXPECT_TRUE(SameBits(y, ref::ProductChains(in, x, w.values(), std::vector<int64_t>{0, in}, fused)));
      EXPECT_TRUE(Near(y, expected, test::kGemmTolerance));
    });
  }
}

TEST_P(GemmDTypeTest, PartsAreAddedInATree) {
  Random random(12);
  for (const auto& [rows, in, out] : kCases) {
    const StoredWeights w(random, GetParam(), out, in, 0.5);
    const std::vector<float> x = random.Normals(rows * in);
    const PackedWeight packed = PackedWeight::Pack(w.matrix());
    // The usual eight (some empty when in < 8), one, and two uneven ones.
    const std::vector<std::vector<int64_t>> cuts = {SumPartBounds(in), {0, in}, {0, in / 3, in}};
    for (const std::vector<int64_t>& bounds : cuts) {
      SCOPED_TRACE(::testing::Message()
                   << rows << " x " << in << " -> " << out << " in " << bounds.size() - 1 << " parts");
      ForEachTarget([&](int64_t target) {
        const std::vector<float> y = RunGemm(packed, PaddedMatrix(rows, in, x), rows, 2, &bounds);
        const bool fused = test::HasFusedMultiplyAdd(target);
        EXPECT_TRUE(SameBits(y, ref::ProductChains(in, x, w.values(), bounds, fused)));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, GemmDTypeTest, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

TEST(Gemm, SumPartBoundsAreFloors) {
  EXPECT_THAT(SumPartBounds(64), ElementsAre(0, 8, 16, 24, 32, 40, 48, 56, 64));
  EXPECT_THAT(SumPartBounds(20), ElementsAre(0, 2, 5, 7, 10, 12, 15, 17, 20));
  EXPECT_THAT(SumPartBounds(3), ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 3));
}

TEST(Gemm, PartsChangeTheBits) {
  // Else the tree test above would prove nothing.
  Random random(13);
  const StoredWeights w(random, DType::kBF16, 40, 256, 0.5);
  const PackedWeight packed = PackedWeight::Pack(w.matrix());
  const PaddedMatrix x(3, 256, random.Normals(3 * 256));
  const std::vector<int64_t> eight = SumPartBounds(256);
  EXPECT_FALSE(SameBits(RunGemm(packed, x, 3, 1), RunGemm(packed, x, 3, 1, &eight)));
}

TEST(Gemm, PartsOfTwoAndEightRanksAddUpToTheSameBits) {
  // A rank holds the columns of its parts; the ranks' results are added by the same tree.
  Random random(20);
  const int64_t in = 100, out = 37, rows = 6;
  const StoredWeights w(random, DType::kBF16, out, in, 0.5);
  const PaddedMatrix x(rows, in, random.Normals(rows * in));
  const std::vector<int64_t> eight = SumPartBounds(in);
  const std::vector<float> whole = RunGemm(PackedWeight::Pack(w.matrix()), x, rows, 2, &eight);
  KernelRunner runner;
  for (int64_t ranks : {2, 8}) {
    std::vector<std::vector<float>> sums;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t first = rank * kSumParts / ranks, last = (rank + 1) * kSumParts / ranks;
      const int64_t begin = eight[first], count = eight[last] - begin;
      std::vector<int64_t> own(eight.begin() + first, eight.begin() + last + 1);
      for (int64_t& bound : own) bound -= begin;
      PaddedMatrix y(rows, out);
      GemmInParts(runner.context(), x.view().Cols(begin, count),
                  PackedWeight::Pack(w.matrix().Cols(begin, count)), own, y.view());
      sums.push_back(y.values());
    }
    for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
      for (size_t p = 0; p < sums.size() / 2; ++p) {
        for (size_t i = 0; i < whole.size(); ++i) sums[p][i] = sums[2 * p][i] + sums[2 * p + 1][i];
      }
    }
    EXPECT_TRUE(SameBits(sums[0], whole)) << ranks << " ranks";
  }
}

TEST(Gemm, PiecesAreStackedAndSlicesSelect) {
  Random random(14);
  const int64_t in = 37, rows = 5;
  const StoredWeights a(random, DType::kBF16, 21, in, 1), b(random, DType::kBF16, 6, in, 1);
  const PaddedMatrix x(rows, in, random.Normals(rows * in));
  const StoredMatrix pieces[] = {a.matrix(), b.matrix().Rows(2, 3)};
  PackedWeight stacked = PackedWeight::Pack(pieces);
  ASSERT_EQ(stacked.out(), 24);
  const std::vector<float> y = RunGemm(stacked, x, rows, 2);
  const std::vector<float> from_a = RunGemm(PackedWeight::Pack(a.matrix()), x, rows, 2);
  const std::vector<float> from_b = RunGemm(PackedWeight::Pack(b.matrix()), x, rows, 2);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < 24; ++o) {
      EXPECT_EQ(y[r * 24 + o], o < 21 ? from_a[r * 21 + o] : from_b[r * 6 + o - 21 + 2]);
    }
  }

  const PaddedMatrix narrow(rows, 11, random.Normals(rows * 11));
  std::vector<float> w;
  for (int64_t o = 0; o < 21; ++o) {
    for (int64_t i = 4; i < 15; ++i) w.push_back(a.values()[o * in + i]);
  }
  EXPECT_TRUE(SameBits(RunGemm(PackedWeight::Pack(a.matrix().Cols(4, 11)), narrow, rows, 2),
                       ref::ProductChains(11, narrow.values(), w, std::vector<int64_t>{0, 11})));
}

TEST(Gemm, MixedDTypesInOnePackKeepTheirValues) {
  Random random(15);
  const int64_t in = 19, rows = 3;
  const StoredWeights a(random, DType::kBF16, 9, in, 1), b(random, DType::kF32, 10, in, 1);
  const StoredMatrix pieces[] = {a.matrix(), b.matrix()};
  std::vector<float> w = a.values();
  w.insert(w.end(), b.values().begin(), b.values().end());
  const PaddedMatrix x(rows, in, random.Normals(rows * in));
  EXPECT_TRUE(SameBits(RunGemm(PackedWeight::Pack(pieces), x, rows, 1),
                       ref::ProductChains(in, x.values(), w, std::vector<int64_t>{0, in})));
}

TEST(Gemm, Transposed) {
  Random random(16);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const StoredWeights stored(random, dtype, 23, 45, 1);  // becomes [out 45, in 23]
    std::vector<float> w;
    for (int64_t o = 0; o < 45; ++o) {
      for (int64_t i = 0; i < 23; ++i) w.push_back(stored.values()[i * 45 + o]);
    }
    const PackedWeight packed = PackedWeight::PackTransposed(stored.matrix());
    ASSERT_EQ(packed.out(), 45);
    ASSERT_EQ(packed.in(), 23);
    const PaddedMatrix x(4, 23, random.Normals(4 * 23));
    EXPECT_TRUE(SameBits(RunGemm(packed, x, 4, 2),
                         ref::ProductChains(23, x.values(), w, std::vector<int64_t>{0, 23})));
  }
}

TEST(Gemm, BitsDependOnNeitherThreadsNorNeighbours) {
  Random random(17);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const int64_t in = 151, out = 70, rows = 67;
    const StoredWeights w(random, dtype, out, in, 0.5);
    const PackedWeight packed = PackedWeight::Pack(w.matrix());
    const std::vector<int64_t> eight = SumPartBounds(in);
    const PaddedMatrix x(rows, in, random.Normals(rows * in));
    for (const std::vector<int64_t>* bounds : {static_cast<const std::vector<int64_t>*>(nullptr), &eight}) {
      const std::vector<float> all = RunGemm(packed, x, rows, 1, bounds);
      for (int threads : {2, 3}) EXPECT_TRUE(SameBits(RunGemm(packed, x, rows, threads, bounds), all));
      for (int64_t r : {0, 1, 31, 64, 66}) {
        const std::vector<float> alone = RunGemm(packed, PaddedMatrix(1, in, x.row(r)), 1, 2, bounds);
        EXPECT_TRUE(SameBits(alone, std::vector<float>(all.begin() + r * out, all.begin() + (r + 1) * out)));
      }
    }
  }
}

TEST(Gemm, NoRowsIsNothing) {
  Random random(18);
  const StoredWeights w(random, DType::kBF16, 5, 8, 1);
  KernelRunner runner;
  const std::vector<int64_t> eight = SumPartBounds(8);
  Gemm(runner.context(), ConstMatrixF(nullptr, 0, 8), PackedWeight::Pack(w.matrix()), MatrixF(nullptr, 0, 5));
  GemmInParts(runner.context(), ConstMatrixF(nullptr, 0, 8), PackedWeight::Pack(w.matrix()), eight,
              MatrixF(nullptr, 0, 5));
}

TEST(Gemm, NonFiniteInputStaysInItsRow) {
  Random random(19);
  const int64_t in = 24, out = 20;
  const StoredWeights w(random, DType::kBF16, out, in, 1);
  std::vector<float> x = random.Normals(3 * in);
  const PackedWeight packed = PackedWeight::Pack(w.matrix());
  const std::vector<float> clean = RunGemm(packed, PaddedMatrix(3, in, x), 3, 1);
  x[in + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y = RunGemm(packed, PaddedMatrix(3, in, x), 3, 1);
  for (int64_t i = 0; i < 3 * out; ++i) {
    if (i / out == 1) {
      EXPECT_NE(y[i], y[i]);
    } else {
      EXPECT_EQ(y[i], clean[i]);
    }
  }
}

}  // namespace
}  // namespace perigee::kernels
