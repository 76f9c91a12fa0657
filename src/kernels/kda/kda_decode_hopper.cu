#include "kernels/kda/kda_hopper.h"

// One token of every sequence. A block has one head of one sequence; a warp has 128 / kWarps key channels, a
// lane four value channels of each, so that the state is loaded once, in 16-byte pieces, stays in registers
// for the step and is stored once. The loads of the state are issued before everything else: what the step
// needs besides is ready when they arrive.
namespace perigee::kernels {
namespace {

constexpr int kWidth = 128;
constexpr int kTaps = 4;
constexpr int kFewBlocks = 132;  // one wave of the largest chip of this architecture

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
  return x;
}

__device__ __forceinline__ float Sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}
__device__ __forceinline__ float Softplus(float x) {
  return x > 20.0f ? x : log1pf(__expf(x));
}

__device__ __forceinline__ float Dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ __forceinline__ float4 FusedMultiplyAdd(float a, float4 x, float4 y) {
  return {fmaf(a, x.x, y.x), fmaf(a, x.y, y.y), fmaf(a, x.z, y.z), fmaf(a, x.w, y.w)};
}

__device__ __forceinline__ float4 Scale(float a, float4 x) {
  return {a * x.x, a * x.y, a * x.z, a * x.w};
}

// Convolution of channel `channel` of input `which` (q, k, v) and its carried tail.
__device__ __forceinline__ float Convolve(const KdaCudaDecodeArgs& a, int which, int64_t slot, int row,
                                          int channel) {
  const __nv_bfloat16* x = which == 0   ? a.q + row * a.q_stride
                           : which == 1 ? a.k + row * a.k_stride
                                        : a.v + row * a.v_stride;
  __nv_bfloat16* tail = (which == 0   ? a.tail_q
                         : which == 1 ? a.tail_k
                                      : a.tail_v) +
                        slot * a.tail_slot_stride;
  const float* taps = which == 0 ? a.taps_q : which == 1 ? a.taps_k : a.taps_v;
  __nv_bfloat16 window[kTaps];
#pragma unroll
  for (int m = 0; m < kTaps - 1; ++m) window[m] = tail[m * a.tail_stride + channel];
  window[kTaps - 1] = x[channel];
  float sum = 0.0f;
#pragma unroll
  for (int m = 0; m < kTaps; ++m)
    sum = fmaf(taps[m * a.taps_stride + channel], __bfloat162float(window[m]), sum);
#pragma unroll
  for (int m = 0; m < kTaps - 1; ++m) tail[m * a.tail_stride + channel] = window[m + 1];
  return sum * Sigmoid(sum);
}

// The step of one head of one sequence by the whole block: key channels kRows warp .. of a warp, value
// channels 4 lane .. of a lane.
template <int kWarps>
struct Step {
  static constexpr int kRows = kWidth / kWarps;

  float qkv[3][kWidth];  // after convolution and SiLU
  float decay[kWidth];
  float n[kWidth];
  float out[kWidth];
  float4 predicted[kWarps][32];
  float4 read[kWarps][32];

  // The inputs of the step; ends with a barrier.
  __device__ __forceinline__ void Inputs(const KdaCudaDecodeArgs& a, int64_t slot, int row, int head) {
    for (int at = threadIdx.x; at < 4 * kWidth; at += kWarps * 32) {
      const int which = at / kWidth, channel = at % kWidth;
      if (which < 3) {
        qkv[which][channel] = Convolve(a, which, slot, row, head * kWidth + channel);
      } else {
        const int column = head * kWidth + channel;
        const float z = __bfloat162float(a.z[row * a.z_stride + column]) + a.dt_bias[column];
        decay[channel] = __expf(a.neg_exp_a[head] * Softplus(z));
      }
    }
    __syncthreads();
  }

  // x[i]: the state at the warp's key channel i, replaced.
  __device__ __forceinline__ void Advance(const KdaCudaDecodeArgs& a, int row, int head, float4 (&x)[kRows]) {
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const float4 q = reinterpret_cast<const float4*>(qkv[0])[lane];
    const float4 k = reinterpret_cast<const float4*>(qkv[1])[lane];
    const float query = rsqrtf(WarpSum(Dot(q, q)) + 1e-6f) * 0.08838834764831845f;
    const float key = rsqrtf(WarpSum(Dot(k, k)) + 1e-6f);
    const float dot = WarpSum(Dot(q, k)) * query * key;
    float4 p{0.0f, 0.0f, 0.0f, 0.0f}, r = p;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int channel = warp * kRows + i;
      x[i] = Scale(decay[channel], x[i]);
      p = FusedMultiplyAdd(qkv[1][channel], x[i], p);
      r = FusedMultiplyAdd(qkv[0][channel], x[i], r);
    }
    predicted[warp][lane] = p;
    read[warp][lane] = r;
    __syncthreads();
    if (thread < kWidth) {
      const float beta = Sigmoid(__bfloat162float(a.beta_logits[row * a.beta_stride + head]));
      float sum_p = 0.0f, sum_r = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        sum_p += reinterpret_cast<const float*>(predicted[w])[thread];
        sum_r += reinterpret_cast<const float*>(read[w])[thread];
      }
      n[thread] = beta * (qkv[2][thread] - key * sum_p);
      out[thread] = query * sum_r + dot * n[thread];
    }
    __syncthreads();
    float4 write = reinterpret_cast<const float4*>(n)[lane];
    write = Scale(key, write);
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] = FusedMultiplyAdd(qkv[1][warp * kRows + i], write, x[i]);
    if (warp == kWarps - 1) StoreOutput(a, row, head, lane);
  }

  // Gated norm, by one warp.
  __device__ __forceinline__ void StoreOutput(const KdaCudaDecodeArgs& a, int row, int head, int lane) const {
    const float4 o = reinterpret_cast<const float4*>(out)[lane];
    const float scale = rsqrtf(WarpSum(Dot(o, o)) * (1.0f / kWidth) + a.norm_eps);
    const float value[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = 4 * lane + i;
      const float gate = __bfloat162float(a.gate[row * a.gate_stride + head * kWidth + channel]);
      a.out[row * a.out_stride + head * kWidth + channel] =
          __float2bfloat16(value[i] * scale * a.norm_weight[channel] * Sigmoid(gate));
    }
  }
};

__device__ __forceinline__ float* StateOf(const KdaCudaDecodeArgs& a, int64_t slot, int head) {
  return a.state + slot * a.state_slot_stride + static_cast<int64_t>(head) * kWidth * kWidth;
}

__device__ __forceinline__ void StorePadding(const KdaCudaDecodeArgs& a, int row, int head) {
  if (threadIdx.x < kWidth) {
    a.out[row * a.out_stride + head * kWidth + threadIdx.x] = __float2bfloat16(0.0f);
  }
}

// The loads of the state are issued before everything else, and what the step needs besides is ready when
// they arrive. Grid: (heads, batch).
template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32) DecodeKernel(const __grid_constant__ KdaCudaDecodeArgs a) {
  using Block = Step<kWarps>;
  __shared__ Block step;
  const int head = blockIdx.x, row = blockIdx.y;
  const int64_t slot = a.slots[row * a.slots_stride];
  if (slot < 0) {
    StorePadding(a, row, head);
    return;
  }
  float4* state = reinterpret_cast<float4*>(StateOf(a, slot, head)) + threadIdx.x / 32 * Block::kRows * 32 +
                  threadIdx.x % 32;
  float4 x[Block::kRows];
#pragma unroll
  for (int i = 0; i < Block::kRows; ++i) x[i] = __ldcs(state + i * 32);
  step.Inputs(a, slot, row, head);
  step.Advance(a, row, head, x);
#pragma unroll
  for (int i = 0; i < Block::kRows; ++i) __stcs(state + i * 32, x[i]);
}

}  // namespace

cudaError_t KdaCudaDecode(const KdaCudaDecodeArgs& a, cudaStream_t stream) {
  if (a.batch < 0 || a.batch > 65535 || a.num_heads < 1 || a.state == nullptr || a.slots == nullptr ||
      a.state_slot_stride % 4 != 0 || reinterpret_cast<uintptr_t>(a.state) % 16 != 0) {
    return cudaErrorInvalidValue;
  }
  if (a.batch == 0) return cudaSuccess;
  // Few blocks: as many warps as a block can have, so that all of its state is in flight at once.
  const dim3 grid(a.num_heads, a.batch);
  if (a.batch * a.num_heads <= kFewBlocks) {
    DecodeKernel<32><<<grid, 1024, 0, stream>>>(a);
  } else {
    DecodeKernel<8><<<grid, 256, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

}  // namespace perigee::kernels
