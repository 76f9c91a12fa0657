#pragma once

#include <gtest/gtest.h>

#include "tensor/device_memory.h"

// Ends a test on a machine without a GPU that can be used; in a build without CUDA, always.
#define SKIP_WITHOUT_GPU()                                                     \
  do {                                                                         \
    const ::perigee::Status status_of_gpu = ::perigee::device_memory::Open(0); \
    if (!status_of_gpu.ok()) GTEST_SKIP() << status_of_gpu.message();          \
  } while (false)
