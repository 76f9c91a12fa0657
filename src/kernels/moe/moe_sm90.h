#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace perigee::kernels::cuda {

// Mixture of experts on Hopper (kimi-linear specification 3.6); the meaning is that of kernels/moe/moe.h. All
// pointers are device pointers unless said otherwise. Everything is ordered by `stream`, nothing synchronises
// with the host, and launch sizes depend on the arguments' host values alone, so every call can be captured
// in a graph. Errors: cudaErrorInvalidValue for a shape or alignment outside what is stated, before anything
// is launched; else the error of the launch.

inline constexpr int kMoeMaxExperts = 1024;
inline constexpr int kMoeMaxTopK = 32;

struct MoeRouteArgs {
  const float* logits = nullptr;  // [rows, experts], rows logits_stride elements apart
  int64_t logits_stride = 0;
  const float* bias = nullptr;  // [experts]: added for the choice alone
  int64_t rows = 0;
  int experts = 0;  // at most kMoeMaxExperts
  int top_k = 0;    // at most kMoeMaxTopK
  bool renormalize = true;
  float scaling_factor = 1;
  // Rows from *valid_rows on choose no expert (index -1, weight 0): padding of a captured step. Null: all are
  // valid.
  const int32_t* valid_rows = nullptr;
  int32_t* chosen = nullptr;  // out [rows, top_k], ascending
  float* weights = nullptr;   // out [rows, top_k]
};

// sigmoid scores; the top_k largest of score + bias (ties to the lower index, a NaN after every number);
// weights are the scores, divided by (their sum + 1e-20) if renormalize, times scaling_factor.
cudaError_t MoeRoute(const MoeRouteArgs& args, cudaStream_t stream);

// Experts of one rank: `experts` of the router's, then, if `shared`, one more of the same width that takes
// every row with weight 1.
struct MoeShape {
  int experts = 0;
  bool shared = false;
  int hidden = 0;  // multiple of 8
  int width = 0;   // multiple of 8

  int held() const { return experts + (shared ? 1 : 0); }  // at most kMoeMaxExperts
};

// Whether the shape is within what is stated above.
bool MoeTakes(const MoeShape& shape);

// Tensor maps of the weights, to be copied to the device once (128 bytes each, 64-byte aligned): gate_up[e]
// [2 * width, hidden] (gate rows, then up rows) and down[e] [hidden, width], device addresses of bf16,
// 16-byte aligned. The spans have held() entries each.
cudaError_t MoeTensorMaps(const MoeShape& shape, std::span<const __nv_bfloat16* const> gate_up,
                          std::span<const __nv_bfloat16* const> down, std::vector<std::byte>& maps);

struct MoeForwardArgs {
  MoeShape shape;
  const __nv_bfloat16* const* gate_up = nullptr;  // [held()] device addresses, in device memory
  const __nv_bfloat16* const* down = nullptr;     // [held()]
  const void* maps = nullptr;                     // what MoeTensorMaps made, in device memory

  const __nv_bfloat16* x = nullptr;  // [rows, hidden], 16-byte aligned, stride a multiple of 8
  int64_t x_stride = 0;
  int64_t rows = 0;
  const int32_t* chosen =
      nullptr;  // [rows, top_k] of the router's indices; those outside [first, first + experts) are
  const float* weights = nullptr;  // left out (another rank adds them)
  int top_k = 0;
  int first_expert = 0;
  const __nv_bfloat16* addend = nullptr;  // [rows, hidden] dense, or null: added last
  __nv_bfloat16* y = nullptr;             // [rows, hidden], rows y_stride elements apart
  int64_t y_stride = 0;
  void* workspace = nullptr;  // MoeWorkspaceBytes, 256-byte aligned
};

// Bytes for `rows` rows; does not grow beyond 16384 rows, which are taken at a time.
size_t MoeWorkspaceBytes(const MoeShape& shape, int64_t rows, int top_k);

// y = sum over the chosen experts of weight * MLP_e(x), in ascending index, + the shared expert's, + addend.
// Products of bf16 with fp32 sums; activations and each expert's output are rounded to bf16, their sum is in
// fp32. Up to 8 rows stream the chosen experts' weights once (bound by memory); more rows go through
// tensor-core tiles of up to 256 rows.
cudaError_t MoeForward(const MoeForwardArgs& args, cudaStream_t stream);

}  // namespace perigee::kernels::cuda
