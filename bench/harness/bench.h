#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/shapes.h"
#include "kernels/context.h"
#include "kernels/gemm/gemm.h"
#include "tensor/matrix.h"

namespace perigee::bench {

// What one call does, for the printed rates: arithmetic (a multiply-add counts as two) and the bytes that
// must move at least once. 0: not printed.
struct Work {
  double flops = 0;
  double bytes = 0;
};

// A kernel call ready to be repeated; owns its operands.
struct Prepared {
  Work work;
  std::function<void()> run;
};

// Registers <kernel>/<set.name>. `prepare` is called when the bench is first run, so that a filtered-out
// bench costs nothing; what it made is dropped when the next bench starts.
void AddBench(const std::string& kernel, const ShapeSet& set,
              const std::function<Prepared(const kernels::KernelContext&)>& prepare);

// Threads of every bench, the caller included; set before the first bench runs.
void SetThreads(int threads);

// A matrix that owns its elements: uniform numbers in [low, high), the same on every run.
class BenchMatrix {
 public:
  BenchMatrix(int64_t rows, int64_t cols, float low = -1, float high = 1);
  MatrixF view() { return {data_.data(), rows_, cols_}; }
  std::vector<float>& data() { return data_; }

 private:
  int64_t rows_;
  int64_t cols_;
  std::vector<float> data_;
};

// A BF16 weight as in a checkpoint, about 1 / sqrt(cols) large.
class BenchWeight {
 public:
  BenchWeight(int64_t rows, int64_t cols);
  kernels::StoredMatrix stored() const {
    return {.data = data_.data(), .dtype = DType::kBF16, .rows = rows_, .cols = cols_, .row_stride = cols_};
  }

 private:
  int64_t rows_;
  int64_t cols_;
  std::vector<uint16_t> data_;
};

inline kernels::PackedWeight PackedBenchWeight(int64_t rows, int64_t cols) {
  return kernels::PackedWeight::Pack(BenchWeight(rows, cols).stored());
}

}  // namespace perigee::bench
