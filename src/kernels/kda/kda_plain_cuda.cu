#include "kernels/elementwise_cuda.cuh"
#include "kernels/kda/kda_cuda.h"

// The recurrence as it is written, one row after another: right for every gate and width.
namespace perigee::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxKeys = 256;

template <typename T>
struct Rows {
  View<const T> q, k, v;
  View<const float> g, beta;
  View<T> out;
};

template <int kLanes>
__device__ float ColumnSum(float v) {
#pragma unroll
  for (int i = 1; i < kLanes; i *= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}

// Some columns of one head's state of one segment; a column lies in kLanes threads, kEach entries in each:
//   S = diag(exp(g)) S;  n = beta (v - S^T k);  S = S + k n^T;  out = S^T q
template <int kLanes, int kEach, typename T>
__global__ void __launch_bounds__(kThreads)
    RecurrenceKernel(Rows<T> x, const Segment* segments, float* states, int64_t state_stride, int key_dim,
                     int value_dim) {
  __shared__ float key[kMaxKeys], query[kMaxKeys], decay[kMaxKeys];
  const Segment s = segments[blockIdx.x];
  if (s.q_len == 0) return;
  const int head = blockIdx.y;
  const int lane = threadIdx.x % kLanes;
  const int column = blockIdx.z * (kThreads / kLanes) + threadIdx.x / kLanes;
  const bool inside = column < value_dim;
  float* stored = states + s.slot * state_stride + static_cast<int64_t>(head) * key_dim * value_dim;
  float state[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int ch = i * kLanes + lane;
    state[i] = inside && ch < key_dim ? stored[static_cast<int64_t>(ch) * value_dim + column] : 0.0f;
  }
  const float scale = rsqrtf(static_cast<float>(key_dim));
  for (int64_t row = s.q_begin; row < s.q_begin + s.q_len; ++row) {
    const int ch = threadIdx.x;
    const int64_t at = static_cast<int64_t>(head) * key_dim + ch;
    const float k = ch < key_dim ? Load(x.k.Row(row) + at) : 0.0f;
    const float q = ch < key_dim ? Load(x.q.Row(row) + at) : 0.0f;
    key[ch] = k * rsqrtf(BlockSum(k * k) + 1e-6f);
    query[ch] = q * rsqrtf(BlockSum(q * q) + 1e-6f) * scale;
    decay[ch] = ch < key_dim ? __expf(x.g.Row(row)[at]) : 0.0f;
    __syncthreads();
    float predicted = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      state[i] *= decay[i * kLanes + lane];
      predicted += state[i] * key[i * kLanes + lane];
    }
    predicted = ColumnSum<kLanes>(predicted);
    const float value = inside ? Load(x.v.Row(row) + static_cast<int64_t>(head) * value_dim + column) : 0.0f;
    const float n = x.beta.Row(row)[head] * (value - predicted);
    float read = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      state[i] += key[i * kLanes + lane] * n;
      read += state[i] * query[i * kLanes + lane];
    }
    read = ColumnSum<kLanes>(read);
    if (inside && lane == 0) Store(read, x.out.Row(row) + static_cast<int64_t>(head) * value_dim + column);
    __syncthreads();
  }
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int ch = i * kLanes + lane;
    if (ch < key_dim) stored[static_cast<int64_t>(ch) * value_dim + column] = state[i];
  }
}

template <int kLanes, int kEach, typename T>
void Launch(const KernelContext& context, const KdaArgs& a, const Rows<T>& rows) {
  const dim3 grid(static_cast<unsigned>(a.segments.size()), static_cast<unsigned>(a.num_heads),
                  Blocks(a.value_dim, kThreads / kLanes));
  RecurrenceKernel<kLanes, kEach, T><<<grid, kThreads, 0, StreamOf(context)>>>(
      rows, OnDevice(context, a.segments), a.states.recurrent, a.states.recurrent_stride,
      static_cast<int>(a.key_dim), static_cast<int>(a.value_dim));
  CheckLaunch();
}

__device__ float Softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

template <typename T, typename G>
struct GateAt {
  View<const T> z;
  const float* bias;
  const float* factor;
  int64_t width;
  View<G> g;
  __device__ void operator()(int64_t r, int64_t c) const {
    Store(factor[c / width] * Softplus(Load(z.Row(r) + c) + bias[c]), g.Row(r) + c);
  }
};

template <typename T, typename Y>
struct SigmoidAt {
  View<const T> x;
  View<Y> y;
  __device__ void operator()(int64_t r, int64_t c) const {
    Store(SigmoidOf(Load(x.Row(r) + c)), y.Row(r) + c);
  }
};

}  // namespace

void KdaDecode(const KernelContext& context, const KdaArgs& args) {
  if (args.segments.empty()) return;
  const Workspace::Scope scope(*context.workspace);
  const KdaArgs a = WithGates(context, args);
  PERIGEE_CHECK_MSG(a.key_dim <= kMaxKeys, "KDA heads wider than 256 on CUDA");
  PERIGEE_CHECK(a.g.dtype == DType::kF32 && a.beta.dtype == DType::kF32);
  PERIGEE_CHECK(a.k.dtype == a.q.dtype && a.v.dtype == a.q.dtype && a.out.dtype == a.q.dtype);
  WithType(a.q.dtype, [&]<typename T>(T*) {
    const Rows<T> rows{ViewOf<T>(a.q),     ViewOf<T>(a.k),        ViewOf<T>(a.v),
                       ViewOf<float>(a.g), ViewOf<float>(a.beta), ViewOf<T>(a.out)};
    if (a.key_dim <= 32) {
      Launch<4, 8, T>(context, a, rows);
    } else if (a.key_dim <= 128) {
      Launch<4, 32, T>(context, a, rows);
    } else {
      Launch<8, 32, T>(context, a, rows);
    }
  });
}

void KdaGate(const KernelContext& context, ConstMatrix z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, Matrix g) {
  const int64_t width = z.cols / static_cast<int64_t>(neg_exp_a.size());
  WithType(z.dtype, [&]<typename T>(T*) {
    WithType(g.dtype, [&]<typename G>(G*) {
      ForElements(context, z.rows, z.cols,
                  GateAt<T, G>{ViewOf<T>(z), dt_bias.data(), neg_exp_a.data(), width, ViewOf<G>(g)});
    });
  });
}

void Sigmoid(const KernelContext& context, ConstMatrix x, Matrix y) {
  WithType(x.dtype, [&]<typename T>(T*) {
    WithType(y.dtype, [&]<typename Y>(Y*) {
      ForElements(context, x.rows, x.cols, SigmoidAt<T, Y>{ViewOf<T>(x), ViewOf<Y>(y)});
    });
  });
}

}  // namespace perigee::kernels::cuda
