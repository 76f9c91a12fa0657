#pragma once

#include "kernels/cuda_common.cuh"

namespace perigee::kernels::cuda {

inline constexpr int kElementThreads = 256;

// f(row, col) for every element of rows x cols.
template <typename F>
__global__ void __launch_bounds__(kElementThreads) ElementsKernel(int64_t rows, int64_t cols, F f) {
  const int64_t count = rows * cols;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kElementThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x; i < count; i += step) {
    f(i / cols, i % cols);
  }
}

template <typename F>
void ForElements(const KernelContext& context, int64_t rows, int64_t cols, const F& f) {
  if (rows * cols == 0) return;
  constexpr unsigned kMaxBlocks = 132 * 16;
  const unsigned wanted = Blocks(rows * cols, kElementThreads);
  const unsigned blocks = wanted > kMaxBlocks ? kMaxBlocks : wanted;
  ElementsKernel<<<blocks, kElementThreads, 0, StreamOf(context)>>>(rows, cols, f);
  CheckLaunch();
}

}  // namespace perigee::kernels::cuda
