#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/mla/mla_flash_cudnn.h"

namespace perigee::kernels::cuda {

// Runs of one launch as kernel parameters.
struct MlaFlashRuns {
  MlaFlashRun run[MlaFlash::kMaxRuns];
};

// Elements from one row (or key) to the next, of each tensor.
struct MlaFlashStrides {
  int64_t q = 0, k = 0, v = 0, out = 0, lse = 0;
};

// What cuDNN reads beside the tensors, on the device: lengths [runs] and first elements [runs + 1] of each
// run.
struct MlaFlashIndex {
  int32_t* q_len = nullptr;
  int32_t* k_len = nullptr;
  int64_t* q = nullptr;
  int64_t* k = nullptr;
  int64_t* v = nullptr;
  int64_t* out = nullptr;
  int64_t* lse = nullptr;
};

// Fills the index of `count` runs; `runs` are passed by value, so the launch can be captured.
cudaError_t MlaFlashFillIndex(const MlaFlashRuns& runs, int count, const MlaFlashStrides& strides,
                              const MlaFlashIndex& index, cudaStream_t stream);

// to[row * heads + head] = from[head * rows + row].
cudaError_t MlaFlashTransposeLse(const float* from, int64_t rows, int heads, float* to, cudaStream_t stream);

}  // namespace perigee::kernels::cuda
