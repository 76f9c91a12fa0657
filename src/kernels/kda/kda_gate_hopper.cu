#include "kernels/kda/kda_hopper.h"

namespace perigee::kernels {
namespace {

__device__ __forceinline__ float Gate(float z, float bias, float slope) {
  const float x = z + bias;
  return slope * (x > 20.0f ? x : log1pf(__expf(x)));
}

// Grid: (pieces of the columns, rows).
__global__ void GateKernel(const __grid_constant__ KdaCudaGateArgs a) {
  const int columns = a.num_heads * a.key_dim;
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column < columns) {
      a.g[row * a.g_stride + column] = Gate(__bfloat162float(a.z[row * a.z_stride + column]),
                                            a.dt_bias[column], a.neg_exp_a[column / a.key_dim]);
    }
    if (a.beta != nullptr && column < a.num_heads) {
      const float x = __bfloat162float(a.beta_logits[row * a.beta_logits_stride + column]);
      a.beta[row * a.beta_stride + column] = 1.0f / (1.0f + __expf(-x));
    }
  }
}

}  // namespace

cudaError_t KdaCudaGate(const KdaCudaGateArgs& a, cudaStream_t stream) {
  if (a.rows < 0 || a.num_heads < 1 || a.key_dim < 1 || a.z == nullptr || a.g == nullptr ||
      (a.beta == nullptr) != (a.beta_logits == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (a.rows == 0) return cudaSuccess;
  const int columns = a.num_heads * a.key_dim;
  const int64_t rows = a.rows < 65535 ? a.rows : 65535;
  GateKernel<<<dim3((columns + 255) / 256, static_cast<unsigned>(rows)), 256, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace perigee::kernels
