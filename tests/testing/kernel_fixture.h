#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/context.h"
#include "tensor/matrix.h"
#include "testing/compare.h"

namespace perigee::test {

// What a kernel call needs, with a pool of its own.
class KernelRunner {
 public:
  explicit KernelRunner(int threads = 2) : pool_(threads) {}
  const kernels::KernelContext& context() const { return context_; }

 private:
  ThreadPool pool_;
  kernels::Workspace workspace_;
  kernels::KernelContext context_{&pool_, &workspace_};
};

// A matrix whose rows lie further apart than they are long, so that a kernel that ignores the stride or
// writes past a row is seen: the gaps hold NaN.
class PaddedMatrix {
 public:
  PaddedMatrix(int64_t rows, int64_t cols, int64_t gap = 5)
      : rows_(rows), cols_(cols), stride_(cols + gap), data_(static_cast<size_t>(rows * stride_), kGap) {}
  PaddedMatrix(int64_t rows, int64_t cols, std::span<const float> values, int64_t gap = 5)
      : PaddedMatrix(rows, cols, gap) {
    for (int64_t i = 0; i < rows * cols; ++i) data_[Index(i)] = values[i];
  }

  MatrixF view() { return {data_.data(), rows_, cols_, stride_}; }
  ConstMatrixF view() const { return {data_.data(), rows_, cols_, stride_}; }
  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t i = 0; i < rows_ * cols_; ++i) out.push_back(data_[Index(i)]);
    return out;
  }
  std::vector<float> row(int64_t r) const {
    return {data_.begin() + r * stride_, data_.begin() + r * stride_ + cols_};
  }
  // Whether nothing was written between the rows.
  ::testing::AssertionResult GapsUntouched() const {
    for (int64_t i = 0; i < static_cast<int64_t>(data_.size()); ++i) {
      if (i % stride_ >= cols_ && data_[i] == data_[i]) {
        return ::testing::AssertionFailure()
               << "written past row " << i / stride_ << ", column " << i % stride_;
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static constexpr float kGap = std::numeric_limits<float>::quiet_NaN();
  size_t Index(int64_t i) const { return static_cast<size_t>(i / cols_ * stride_ + i % cols_); }

  int64_t rows_;
  int64_t cols_;
  int64_t stride_;
  std::vector<float> data_;
};

}  // namespace perigee::test
