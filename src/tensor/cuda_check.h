#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

// For files of the CUDA backend only: a device that failed is not used any further.
#define PERIGEE_CUDA_CHECK(call)                                                                  \
  do {                                                                                            \
    const cudaError_t perigee_cuda_error = (call);                                                \
    PERIGEE_CHECK_MSG(perigee_cuda_error == cudaSuccess, cudaGetErrorString(perigee_cuda_error)); \
  } while (false)
