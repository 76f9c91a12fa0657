#include <algorithm>
#include <memory>

#include "kernels/kda/kda_hopper.h"

// The recurrence row after row, for any width up to 256: the plain path. A block has one run, one head and 32
// value channels, whose state stays in shared memory; a warp has every eighth key channel of all of them,
// lane = value channel. fp32 throughout.
namespace perigee::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kLanes = 32;
constexpr int kMaxDim = 256;
constexpr int kRunsPerLaunch = 128;
constexpr int kCheckpointsPerLaunch = 256;

// One launch. Checkpoints of a run: [checkpoint, next run's checkpoint).
struct Launch {
  KdaCudaRun runs[kRunsPerLaunch];
  int checkpoint[kRunsPerLaunch + 1];
  KdaCudaCheckpoint checkpoints[kCheckpointsPerLaunch];
};

struct Row {
  float key[kMaxDim];
  float query[kMaxDim];
  float decay[kMaxDim];
  float sums[3][kWarps];  // q q, k k, q k
  float predicted[kWarps][kLanes];
  float read[kWarps][kLanes];
};

__device__ float WarpSum(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
  return x;
}

__device__ float LogDecay(const KdaCudaDecay& d, int64_t row, int head, int64_t column) {
  if (d.g != nullptr) return d.g[row * d.g_stride + column];
  const float x = __bfloat162float(d.z[row * d.z_stride + column]) + d.dt_bias[column];
  return d.neg_exp_a[head] * (x > 20.0f ? x : log1pf(expf(x)));
}

// Loads one row's head; leaves q and k as they are and returns the factors that normalise them, and q . k of
// the normalised ones.
__device__ float3 LoadRow(const KdaCudaPrefillArgs& a, int64_t row, int head, Row& s) {
  const int thread = threadIdx.x, lane = thread % kLanes, warp = thread / kLanes;
  float qq = 0.0f, kk = 0.0f, qk = 0.0f;
  if (thread < a.key_dim) {
    const int64_t column = static_cast<int64_t>(head) * a.key_dim + thread;
    const float q = __bfloat162float(a.q[row * a.q_stride + column]);
    const float k = __bfloat162float(a.k[row * a.k_stride + column]);
    s.query[thread] = q;
    s.key[thread] = k;
    s.decay[thread] = expf(LogDecay(a.decay, row, head, column));
    qq = q * q;
    kk = k * k;
    qk = q * k;
  }
  qq = WarpSum(qq);
  kk = WarpSum(kk);
  qk = WarpSum(qk);
  if (lane == 0) {
    s.sums[0][warp] = qq;
    s.sums[1][warp] = kk;
    s.sums[2][warp] = qk;
  }
  __syncthreads();
  float3 sum{0.0f, 0.0f, 0.0f};
  for (int w = 0; w < kWarps; ++w) {
    sum.x += s.sums[0][w];
    sum.y += s.sums[1][w];
    sum.z += s.sums[2][w];
  }
  const float query = rsqrtf(sum.x + 1e-6f) * rsqrtf(static_cast<float>(a.key_dim));
  const float key = rsqrtf(sum.y + 1e-6f);
  return {query, key, query * key * sum.z};
}

// Grid: (tiles of 32 value channels, heads, runs).
__global__ void __launch_bounds__(kWarps* kLanes)
    RecurrentKernel(const __grid_constant__ KdaCudaPrefillArgs a, const __grid_constant__ Launch launch) {
  extern __shared__ float state[];  // [key_dim][32]
  __shared__ Row s;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes, head = blockIdx.y;
  const KdaCudaRun& run = launch.runs[blockIdx.z];
  int checkpoint = launch.checkpoint[blockIdx.z];
  const int column = blockIdx.x * kLanes + lane;
  const bool inside = column < a.value_dim;
  const int64_t head_at = static_cast<int64_t>(head) * a.key_dim * a.value_dim + column;
  float* stored = run.state + head_at;
  for (int i = warp; i < a.key_dim; i += kWarps) {
    state[i * kLanes + lane] = inside ? stored[static_cast<int64_t>(i) * a.value_dim] : 0.0f;
  }
  const auto store = [&](float* to) {
    for (int i = warp; inside && i < a.key_dim; i += kWarps) {
      to[static_cast<int64_t>(i) * a.value_dim] = state[i * kLanes + lane];
    }
  };
  const int64_t value_at = static_cast<int64_t>(head) * a.value_dim + column;
  for (int64_t row = run.q_begin; row < run.q_begin + run.q_len; ++row) {
    const float3 factors = LoadRow(a, row, head, s);
    float predicted = 0.0f, read = 0.0f;
    for (int i = warp; i < a.key_dim; i += kWarps) {
      const float x = state[i * kLanes + lane] * s.decay[i];
      state[i * kLanes + lane] = x;
      predicted = fmaf(s.key[i], x, predicted);
      read = fmaf(s.query[i], x, read);
    }
    s.predicted[warp][lane] = predicted;
    s.read[warp][lane] = read;
    __syncthreads();
    predicted = read = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      predicted += s.predicted[w][lane];
      read += s.read[w][lane];
    }
    const float value = inside ? __bfloat162float(a.v[row * a.v_stride + value_at]) : 0.0f;
    const float n = a.beta[row * a.beta_stride + head] * (value - factors.y * predicted);
    for (int i = warp; i < a.key_dim; i += kWarps) state[i * kLanes + lane] += factors.y * s.key[i] * n;
    if (warp == 0 && inside) {
      a.out[row * a.out_stride + value_at] = __float2bfloat16(factors.x * read + factors.z * n);
    }
    if (checkpoint < launch.checkpoint[blockIdx.z + 1] &&
        launch.checkpoints[checkpoint].rows == row + 1 - run.q_begin) {
      store(launch.checkpoints[checkpoint++].state + head_at);
    }
    __syncthreads();
  }
  store(stored);
}

}  // namespace

cudaError_t KdaCudaRecurrent(const KdaCudaPrefillArgs& args, cudaStream_t stream) {
  if (args.num_heads < 1 || args.key_dim < 1 || args.key_dim > kMaxDim || args.value_dim < 1 ||
      args.value_dim > kMaxDim) {
    return cudaErrorInvalidValue;
  }
  const auto launch = std::make_unique<Launch>();
  const size_t runs = args.runs.size();
  size_t checkpoint = 0;
  for (size_t first = 0; first < runs;) {
    int count = 0, checkpoints = 0;
    for (; first < runs && count < kRunsPerLaunch; ++first, ++count) {
      size_t end = checkpoint;
      while (end < args.checkpoints.size() && args.checkpoints[end].run == static_cast<int64_t>(first)) ++end;
      const auto more = static_cast<int>(end - checkpoint);
      if (more > kCheckpointsPerLaunch) return cudaErrorInvalidValue;
      if (checkpoints + more > kCheckpointsPerLaunch) break;
      launch->runs[count] = args.runs[first];
      launch->checkpoint[count] = checkpoints;
      std::copy(args.checkpoints.begin() + checkpoint, args.checkpoints.begin() + end,
                launch->checkpoints + checkpoints);
      checkpoint = end;
      checkpoints += more;
    }
    launch->checkpoint[count] = checkpoints;
    const dim3 grid((args.value_dim + kLanes - 1) / kLanes, args.num_heads, count);
    RecurrentKernel<<<grid, kWarps * kLanes, args.key_dim * kLanes * sizeof(float), stream>>>(args, *launch);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace perigee::kernels
