#include <algorithm>
#include <memory>

#include "kernels/conv/conv_hopper.h"

// A thread has eight neighbouring channels of a strip of rows and keeps the window of the last rows in
// registers: every input is read once, but for the rows where two strips meet. The tails are replaced by a
// kernel of its own, after every strip has read them.
namespace perigee::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kStrip = 32;  // rows
constexpr int kAhead = 4;   // rows loaded at a time
constexpr int kVector = 8;  // channels
constexpr int kMaxRuns = 128;

struct Launch {
  ConvCudaRun runs[kMaxRuns];
  int strip[kMaxRuns + 1];  // first strip of each run
  int count;
};

__device__ __forceinline__ void Unpack(const uint4& bits, float (&x)[kVector]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 b = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&b);
}

__device__ __forceinline__ float Silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

__device__ int FindRun(const Launch& launch, int strip) {
  int run = 0;
  while (run + 1 < launch.count && launch.strip[run + 1] <= strip) ++run;
  return run;
}

// Grid: (pieces of the channels, strips).
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    ConvKernel(const __grid_constant__ ConvCudaArgs a, const __grid_constant__ Launch launch) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (channel >= a.channels) return;
  const int index = FindRun(launch, blockIdx.y);
  const ConvCudaRun& run = launch.runs[index];
  const int64_t begin = static_cast<int64_t>(blockIdx.y - launch.strip[index]) * kStrip;
  const int64_t end = min(begin + kStrip, run.q_len);
  float taps[kWidth][kVector], window[kWidth][kVector];
#pragma unroll
  for (int m = 0; m < kWidth; ++m) {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      const float4 t = *reinterpret_cast<const float4*>(a.taps + m * a.channels + channel + i);
      taps[m][i] = t.x;
      taps[m][i + 1] = t.y;
      taps[m][i + 2] = t.z;
      taps[m][i + 3] = t.w;
    }
  }
  const auto load = [&](int64_t row) {
    const __nv_bfloat16* from = row >= 0 ? a.x + (run.q_begin + row) * a.x_stride + channel
                                         : run.tail + (row + kWidth - 1) * a.channels + channel;
    return *reinterpret_cast<const uint4*>(from);
  };
#pragma unroll
  for (int m = 0; m < kWidth - 1; ++m) Unpack(load(begin - (kWidth - 1) + m), window[m]);
  for (int64_t row = begin; row < end; row += kAhead) {
    uint4 raw[kAhead];  // several rows in flight
#pragma unroll
    for (int i = 0; i < kAhead; ++i) raw[i] = load(min(row + i, end - 1));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (row + i >= end) break;
      Unpack(raw[i], window[kWidth - 1]);
      float y[kVector];
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        float sum = 0.0f;
#pragma unroll
        for (int m = 0; m < kWidth; ++m) sum = fmaf(taps[m][c], window[m][c], sum);
        y[c] = Silu(sum);
#pragma unroll
        for (int m = 0; m < kWidth - 1; ++m) window[m][c] = window[m + 1][c];
      }
      *reinterpret_cast<uint4*>(a.y + (run.q_begin + row + i) * a.y_stride + channel) = {
          Pack(y[0], y[1]), Pack(y[2], y[3]), Pack(y[4], y[5]), Pack(y[6], y[7])};
    }
  }
}

// Grid: (pieces of the channels, runs). A row of the tail comes from a later one or from the inputs:
// ascending order reads each before it is replaced.
__global__ void TailKernel(const __grid_constant__ ConvCudaArgs a, const __grid_constant__ Launch launch) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (channel >= a.channels) return;
  const ConvCudaRun& run = launch.runs[blockIdx.y];
  for (int m = 0; m < a.width - 1; ++m) {
    const int64_t row = run.q_len - (a.width - 1) + m;
    run.tail[m * a.channels + channel] = row >= 0 ? a.x[(run.q_begin + row) * a.x_stride + channel]
                                                  : run.tail[(m + run.q_len) * a.channels + channel];
  }
}

void LaunchConv(const ConvCudaArgs& a, const Launch& launch, cudaStream_t stream) {
  const int64_t vectors = a.channels / kVector;
  const dim3 grid(static_cast<unsigned>((vectors + kThreads - 1) / kThreads), launch.strip[launch.count]);
  switch (a.width) {
    case 2:
      ConvKernel<2><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
    case 3:
      ConvKernel<3><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
    case 4:
      ConvKernel<4><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
    case 5:
      ConvKernel<5><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
    case 6:
      ConvKernel<6><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
    case 7:
      ConvKernel<7><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
    default:
      ConvKernel<8><<<grid, kThreads, 0, stream>>>(a, launch);
      break;
  }
  const dim3 tails(static_cast<unsigned>((a.channels + 255) / 256), launch.count);
  TailKernel<<<tails, 256, 0, stream>>>(a, launch);
}

bool Aligned16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

cudaError_t CausalConv1dCuda(const ConvCudaArgs& a, cudaStream_t stream) {
  if (a.channels < 1 || a.channels % kVector != 0 || a.width < 2 || a.width > 8 || !Aligned16(a.x) ||
      !Aligned16(a.y) || !Aligned16(a.taps) || a.x_stride % kVector != 0 || a.y_stride % kVector != 0) {
    return cudaErrorInvalidValue;
  }
  constexpr int64_t kMaxStrips = 65535;  // of one launch
  for (const ConvCudaRun& run : a.runs) {
    if (run.q_len < 1 || run.q_len > kMaxStrips * kStrip || !Aligned16(run.tail))
      return cudaErrorInvalidValue;
  }
  const auto launch = std::make_unique<Launch>();
  for (size_t next = 0; next < a.runs.size();) {
    launch->count = 0;
    int64_t strips = 0;
    for (; next < a.runs.size() && launch->count < kMaxRuns; ++next) {
      const int64_t more = (a.runs[next].q_len + kStrip - 1) / kStrip;
      if (strips + more > kMaxStrips) break;
      launch->runs[launch->count] = a.runs[next];
      launch->strip[launch->count++] = static_cast<int>(strips);
      strips += more;
    }
    launch->strip[launch->count] = static_cast<int>(strips);
    LaunchConv(a, *launch, stream);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace perigee::kernels
