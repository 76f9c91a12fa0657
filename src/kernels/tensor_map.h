#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

namespace perigee::kernels::cuda {

// Describes bf16 memory to the tensor copy engine: `dims` elements from the innermost dimension, `strides`
// bytes of every dimension but the innermost (multiples of 16), copied in boxes of `box` elements whose
// innermost extent is 64 (128 bytes, swizzled). Elements outside read as zero. base: device address, 16-byte
// aligned. Errors: cudaErrorInvalidValue for what the driver refuses, cudaErrorNotSupported where it has no
// such call.
cudaError_t EncodeTensorMap(CUtensorMap* map, const void* base, std::initializer_list<uint64_t> dims,
                            std::initializer_list<uint64_t> strides, std::initializer_list<uint32_t> box);

}  // namespace perigee::kernels::cuda
