#include "kernels/rows/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/targets.h"

namespace perigee {
namespace {

using test::ForEachTarget;
using test::KernelRunner;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;

TEST(GatherRows, CopiesRowsInOrderWithRepeats) {
  const KernelRunner runner;
  for (const int64_t cols : {1, 5, 16, 300}) {
    Random random(static_cast<uint64_t>(cols));
    const PaddedMatrix source(6, cols, random.Normals(6 * cols));
    const std::vector<int64_t> index = {5, 0, 0, 3, 5};
    PaddedMatrix out(5, cols, 2);
    kernels::GatherRows(runner.context(), source.view(), index, out.view());
    for (size_t i = 0; i < index.size(); ++i) {
      EXPECT_TRUE(SameBits(out.row(static_cast<int64_t>(i)), source.row(index[i])));
    }
    EXPECT_TRUE(out.GapsUntouched());
  }
}

TEST(GatherRows, ManyRowsOnSeveralThreads) {
  Random random(7);
  const PaddedMatrix source(50, 1000, random.Normals(50000));
  std::vector<int64_t> index(400);
  for (int64_t& i : index) i = random.Below(50);
  for (const int threads : {1, 3}) {
    const KernelRunner runner(threads);
    PaddedMatrix out(400, 1000);
    kernels::GatherRows(runner.context(), source.view(), index, out.view());
    for (int64_t i = 0; i < 400; ++i) ASSERT_TRUE(SameBits(out.row(i), source.row(index[i]))) << i;
  }
}

// Every 16-bit pattern, subnormals and NaN included, on every target.
TEST(EmbeddingLookup, WidensEveryHalfExactly) {
  const KernelRunner runner;
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  ForEachTarget([&](int64_t) {
    std::vector<float> out(bits.size());
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      kernels::EmbeddingLookup(runner.context(), {bits.data(), dtype, 8, 8192}, ids, {out.data(), 8, 8192});
      for (size_t i = 0; i < bits.size(); ++i) {
        const float expected = dtype == DType::kF16 ? HalfToFloat(bits[i]) : BFloat16ToFloat(bits[i]);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(out[i])) << i;
        } else {
          ASSERT_EQ(std::memcmp(&out[i], &expected, sizeof expected), 0)
              << DTypeName(dtype) << " " << i << ": " << out[i] << " for " << expected;
        }
      }
    }
  });
}

TEST(EmbeddingLookup, OddWidthsRowsAndUnalignedTables) {
  const KernelRunner runner;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t cols : {1, 3, 15, 17, 33, 72}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " x " << cols);
      // A table starts anywhere in a mapped file: one byte off here.
      const int64_t rows = 9, size = DTypeBytes(dtype);
      std::vector<unsigned char> file(static_cast<size_t>(rows * cols * size + 1));
      Random random(static_cast<uint64_t>(cols));
      std::vector<float> expected;
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float value = static_cast<float>(random.Below(2001) - 1000) / 8;
        const uint16_t bf16 = FloatToBFloat16(value);
        const auto half = static_cast<uint16_t>(random.Next() & 0xbbff);  // finite
        const void* from = dtype == DType::kF32   ? static_cast<const void*>(&value)
                           : dtype == DType::kF16 ? static_cast<const void*>(&half)
                                                  : static_cast<const void*>(&bf16);
        std::memcpy(file.data() + 1 + i * size, from, static_cast<size_t>(size));
        expected.push_back(dtype == DType::kF32   ? value
                           : dtype == DType::kF16 ? HalfToFloat(half)
                                                  : BFloat16ToFloat(bf16));
      }
      const std::vector<int32_t> ids = {8, 0, 4, 4};
      PaddedMatrix out(4, cols);
      kernels::EmbeddingLookup(runner.context(), {file.data() + 1, dtype, rows, cols}, ids, out.view());
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto row = expected.begin() + ids[i] * cols;
        EXPECT_TRUE(SameBits(out.row(static_cast<int64_t>(i)), std::vector<float>(row, row + cols)));
      }
      EXPECT_TRUE(out.GapsUntouched());
    }
  }
}

TEST(RowsDeathTest, IndicesOutsideTheSource) {
  const KernelRunner runner(1);
  std::vector<float> data(4), out(2);
  const std::vector<int64_t> index = {2};
  EXPECT_DEATH(kernels::GatherRows(runner.context(), {data.data(), 2, 2}, index, {out.data(), 1, 2}), "row");
  const std::vector<int32_t> ids = {-1};
  EXPECT_DEATH(
      kernels::EmbeddingLookup(runner.context(), {data.data(), DType::kF32, 2, 2}, ids, {out.data(), 1, 2}),
      "id");
}

}  // namespace
}  // namespace perigee
