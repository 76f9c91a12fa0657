#pragma once

#include "base/check.h"
#include "kernels/context.h"

// Runs one of two calls by the context's device. The only place of the kernels that knows whether CUDA was
// built.
#if PERIGEE_CUDA
#define PERIGEE_DISPATCH(context, cpu_call, cuda_call) \
  do {                                                 \
    if ((context).device == Device::kCuda) {           \
      cuda_call;                                       \
    } else {                                           \
      cpu_call;                                        \
    }                                                  \
  } while (false)
#else
#define PERIGEE_DISPATCH(context, cpu_call, cuda_call) \
  do {                                                 \
    PERIGEE_CHECK((context).device == Device::kCpu);   \
    cpu_call;                                          \
  } while (false)
#endif
