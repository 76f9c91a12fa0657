#include "kernels/tensor_map.h"

#include <cudaTypedefs.h>

namespace perigee::kernels::cuda {
namespace {

// Through the runtime, so that the program needs no libcuda at link time.
PFN_cuTensorMapEncodeTiled_v12000 EncodeFunction() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

cudaError_t EncodeTensorMap(CUtensorMap* map, const void* base, std::initializer_list<uint64_t> dims,
                            std::initializer_list<uint64_t> strides, std::initializer_list<uint32_t> box) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = EncodeFunction();
  if (encode == nullptr) return cudaErrorNotSupported;
  static constexpr uint32_t kUnit[5] = {1, 1, 1, 1, 1};
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<uint32_t>(dims.size()),
                                 const_cast<void*>(base), dims.begin(), strides.begin(), box.begin(), kUnit,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace perigee::kernels::cuda
