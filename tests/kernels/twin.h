#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/device_context.h"
#include "tensor/buffer.h"
#include "tensor/device_memory.h"
#include "tensor/segment.h"
#include "testing/compare.h"
#include "testing/device.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"

// What tests of the CUDA kernels against the CPU's share: the same rows in both memories.
namespace perigee::test {

// One rounding of a result to BF16; several in a row (a product of products).
inline constexpr Tolerance kRounded{.of_max = 1e-4, .relative = 5e-3, .relative_rmse = 4e-3};
inline constexpr Tolerance kRoundedOften{.of_max = 2e-2, .relative = 1e-2, .relative_rmse = 8e-3};
inline constexpr Tolerance kFloat{.of_max = 2e-5, .relative = 2e-5, .relative_rmse = 1e-5};

inline std::vector<float> Rounded(std::vector<float> values) {
  for (float& v : values) v = BFloat16ToFloat(FloatToBFloat16(v));
  return values;
}

// Rows in both memories. On the device they lie further apart than they are long, with NaN in between.
class Twin {
 public:
  Twin(int64_t rows, int64_t cols, const std::vector<float>& values, DType dtype = DType::kBF16)
      : rows_(rows), cols_(cols), dtype_(dtype), host_(values) {
    std::vector<float> padded(static_cast<size_t>(rows * Stride()), NAN);
    for (int64_t i = 0; i < rows * cols; ++i)
      padded[static_cast<size_t>(i / cols * Stride() + i % cols)] = values[i];
    device_ = Buffer::Of(Stored(padded).data(), padded.size() * static_cast<size_t>(DTypeBytes(dtype)),
                         Device::kCuda);
  }
  // Results: nothing written yet.
  Twin(int64_t rows, int64_t cols, DType dtype = DType::kBF16)
      : Twin(rows, cols, std::vector<float>(static_cast<size_t>(rows * cols), NAN), dtype) {}

  Matrix host() { return MatrixF(host_.data(), rows_, cols_); }
  Matrix device() const { return {device_.As<std::byte>(), dtype_, rows_, cols_, Stride()}; }
  const std::vector<float>& expected() const { return host_; }
  std::vector<float> actual() const {
    std::vector<std::byte> bytes(device_.bytes());
    device_memory::Wait({});
    device_memory::CopyToHost(bytes.data(), device_.data(), bytes.size(), {});
    device_memory::Wait({});
    std::vector<float> values;
    for (int64_t i = 0; i < rows_ * Stride(); ++i) {
      const float v = dtype_ == DType::kF32
                          ? reinterpret_cast<const float*>(bytes.data())[i]
                          : BFloat16ToFloat(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
      if (i % Stride() < cols_) {
        values.push_back(v);
      } else {
        EXPECT_TRUE(std::isnan(v)) << "written past row " << i / Stride();
      }
    }
    return values;
  }

 private:
  int64_t Stride() const { return cols_ + 8; }
  std::vector<std::byte> Stored(const std::vector<float>& values) const {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(DTypeBytes(dtype_)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::kF32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else {
        reinterpret_cast<uint16_t*>(bytes.data())[i] = FloatToBFloat16(values[i]);
      }
    }
    return bytes;
  }

  int64_t rows_, cols_;
  DType dtype_;
  std::vector<float> host_;
  Buffer device_;
};

// Segments in mixed order with rows between them that belong to none, and slots that are not their numbers.
inline std::vector<Segment> SomeSegments() {
  return {{.q_begin = 9, .q_len = 1, .kv_len = 200, .slot = 4, .first_block = 0},
          {.q_begin = 0, .q_len = 3, .kv_len = 3, .slot = 2, .first_block = 4},
          {.q_begin = 11, .q_len = 130, .kv_len = 700, .slot = 0, .first_block = 5},
          {.q_begin = 4, .q_len = 2, .kv_len = 65, .slot = 1, .first_block = 16}};
}
inline constexpr int64_t kRowsOfSegments = 142, kSlots = 5;

class CudaKernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    gpu_ = std::make_unique<kernels::DeviceContext>(Device::kCuda, pool_);
  }
  const kernels::KernelContext& cpu() const { return cpu_.context(); }
  const kernels::KernelContext& gpu() const { return gpu_->context(); }
  Twin Rows(int64_t rows, int64_t cols, double scale = 1) {
    return {rows, cols, Rounded(random_.Normals(rows * cols, scale))};
  }
  void ExpectNear(const Twin& twin, const Tolerance& tolerance) {
    device_memory::Wait(gpu().stream);
    EXPECT_TRUE(Near(twin.actual(), twin.expected(), tolerance));
  }

  Random random_{7};
  ThreadPool pool_{2};
  KernelRunner cpu_;
  std::unique_ptr<kernels::DeviceContext> gpu_;
};

}  // namespace perigee::test
