#pragma once

#include <cuda_runtime.h>

// Kernels whose start overlaps the end of the kernel before them in the stream (programmatic dependent
// launch, CUDA programming guide 4.5): for chains of kernels so short that their launches count. Such a
// kernel calls WaitForPrevious before it touches memory that another kernel writes or reads.
namespace perigee::kernels::cuda {

// Everything that the kernels before have written is there. Lets the next kernel of the chain start, which
// will wait in the same place.
__device__ __forceinline__ void WaitForPrevious() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchInChain(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                          const Arguments&... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace perigee::kernels::cuda
