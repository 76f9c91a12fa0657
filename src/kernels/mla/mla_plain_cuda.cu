#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/elementwise_cuda.cuh"
#include "kernels/gemm/lt_cuda.h"
#include "kernels/mla/mla_cuda.h"
#include "kernels/rows/rows_cuda.h"

// Both evaluations read the latents: queries are taken into latent space, all heads of a row share the keys.
namespace perigee::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKeys = 32;  // keys of one step of the running softmax: a lane each
constexpr int kMaxRank = 2 * kThreads;

struct Paged {
  const Segment* segments;
  const int32_t* block_tables;
  const __nv_bfloat16* records;
  int64_t block_tokens;
  int64_t width;

  __device__ int64_t RecordOf(const Segment& s, int64_t position) const {
    const int64_t block = block_tables[s.first_block + position / block_tokens];
    return (block * block_tokens + position % block_tokens) * width;
  }
};

__global__ void __launch_bounds__(kThreads)
    AppendKernel(View<const __nv_bfloat16> latent, View<const __nv_bfloat16> shared_key, Paged paged,
                 __nv_bfloat16* records) {
  const Segment s = paged.segments[blockIdx.y];
  if (blockIdx.x >= s.q_len) return;
  const int64_t row = s.q_begin + blockIdx.x;
  __nv_bfloat16* record = records + paged.RecordOf(s, s.kv_len - s.q_len + blockIdx.x);
  for (int64_t c = threadIdx.x; c < paged.width; c += kThreads) {
    record[c] = c < latent.cols ? latent.Row(row)[c] : shared_key.Row(row)[c - latent.cols];
  }
}

// Where the parts of a row's keys leave their sums, [rows, heads, splits]: maximum, sum of exponentials, and
// sum of weighted latents [rank].
struct Partials {
  float* max;
  float* sum;
  float* context;
};

__device__ float WarpMax(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
  return v;
}

// One row, kHeads heads, one of `splits` runs of its keys. queries [rows, heads * width], in latent space.
template <int kHeads>
__global__ void __launch_bounds__(kThreads)
    AttendKernel(View<const __nv_bfloat16> queries, Paged paged, int heads, int rank, int splits, float scale,
                 Partials partials, View<__nv_bfloat16> out) {
  const Segment s = paged.segments[blockIdx.y];
  if (blockIdx.x >= s.q_len) return;
  const int64_t row = s.q_begin + blockIdx.x;
  const int split = blockIdx.z % splits;
  const int first_head = blockIdx.z / splits * kHeads;
  const int width = static_cast<int>(paged.width);
  const int64_t visible = s.kv_len - s.q_len + blockIdx.x + 1;
  const int64_t each = (visible + splits - 1) / splits;
  const int64_t begin = split * each;
  const int64_t end = begin + each < visible ? begin + each : visible;

  extern __shared__ __nv_bfloat16 memory[];
  const int pitch = width + 2;  // rows of keys start in different banks
  __nv_bfloat16* query = memory;
  __nv_bfloat16* keys = query + kHeads * width;
  float* weights = reinterpret_cast<float*>(keys + (kKeys * pitch + 1) / 2 * 2);  // [kHeads][kKeys]
  __shared__ float max_of[kHeads], sum_of[kHeads], shrink_of[kHeads];
  for (int i = threadIdx.x; i < kHeads * width; i += kThreads) {
    const int h = first_head + i / width;
    query[i] =
        h < heads ? queries.Row(row)[static_cast<int64_t>(h) * width + i % width] : __float2bfloat16_rn(0.0f);
  }
  if (threadIdx.x < kHeads) {
    max_of[threadIdx.x] = -INFINITY;
    sum_of[threadIdx.x] = 0;
  }
  float context[kHeads][2];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) context[h][0] = context[h][1] = 0;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t key = begin; key < end; key += kKeys) {
    __syncthreads();
    for (int k = warp; k < kKeys; k += kThreads / 32) {
      if (key + k >= end) continue;
      const __nv_bfloat16* record = paged.records + paged.RecordOf(s, key + k);
      for (int c = lane; c < width; c += 32) keys[k * pitch + c] = record[c];
    }
    __syncthreads();
    for (int h = warp; h < kHeads; h += kThreads / 32) {
      float score = -INFINITY;
      if (key + lane < end) {
        score = 0;
        for (int c = 0; c < width; ++c) score += Load(query + h * width + c) * Load(keys + lane * pitch + c);
        score *= scale;
      }
      const float old_max = max_of[h];
      const float new_max = fmaxf(old_max, WarpMax(score));
      const float weight = __expf(score - new_max);
      const float sum = WarpSum(weight);
      weights[h * kKeys + lane] = weight;
      __syncwarp();
      if (lane == 0) {
        shrink_of[h] = __expf(old_max - new_max);
        sum_of[h] = sum_of[h] * shrink_of[h] + sum;
        max_of[h] = new_max;
      }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      context[h][0] *= shrink_of[h];
      context[h][1] *= shrink_of[h];
    }
    const int count = end - key < kKeys ? static_cast<int>(end - key) : kKeys;
    const int c0 = threadIdx.x, c1 = threadIdx.x + kThreads;
    for (int k = 0; k < count; ++k) {
      const float v0 = c0 < rank ? Load(keys + k * pitch + c0) : 0.0f;
      const float v1 = c1 < rank ? Load(keys + k * pitch + c1) : 0.0f;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        context[h][0] += weights[h * kKeys + k] * v0;
        context[h][1] += weights[h * kKeys + k] * v1;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = first_head + h;
    if (head >= heads) continue;
    const int64_t at = (row * heads + head) * splits + split;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int c = threadIdx.x + part * kThreads;
      if (c >= rank) continue;
      if (splits == 1) {
        Store(context[h][part] / sum_of[h], out.Row(row) + static_cast<int64_t>(head) * rank + c);
      } else {
        partials.context[at * rank + c] = context[h][part];
      }
    }
    if (splits > 1 && threadIdx.x == 0) {
      partials.max[at] = max_of[h];
      partials.sum[at] = sum_of[h];
    }
  }
}

// A block a row of a segment and head.
__global__ void __launch_bounds__(kThreads)
    MergeKernel(const Segment* segments, int heads, int rank, int splits, Partials partials,
                View<__nv_bfloat16> out) {
  const Segment s = segments[blockIdx.y];
  if (blockIdx.x >= s.q_len) return;
  const int64_t row = s.q_begin + blockIdx.x;
  const int64_t first = (row * heads + blockIdx.z) * splits;
  float max = -INFINITY;
  for (int i = 0; i < splits; ++i) max = fmaxf(max, partials.max[first + i]);
  float sum = 0;
  for (int i = 0; i < splits; ++i) sum += __expf(partials.max[first + i] - max) * partials.sum[first + i];
  for (int c = threadIdx.x; c < rank; c += kThreads) {
    float context = 0;
    for (int i = 0; i < splits; ++i) {
      context += __expf(partials.max[first + i] - max) * partials.context[(first + i) * rank + c];
    }
    Store(context / sum, out.Row(row) + static_cast<int64_t>(blockIdx.z) * rank + c);
  }
}

Paged PagedOf(const KernelContext& context, const PagedSegments& segments, const PagedKvView& cache) {
  PERIGEE_CHECK(cache.dtype == DType::kBF16);
  return {OnDevice(context, segments.list), OnDevice(context, segments.block_tables),
          static_cast<const __nv_bfloat16*>(cache.data), cache.block_tokens, cache.width};
}

unsigned Longest(const PagedSegments& segments) {
  int64_t longest = 0;
  for (const Segment& s : segments.list.host) longest = std::max(longest, s.q_len);
  return static_cast<unsigned>(longest);
}

// Runs of keys a row: enough blocks for every multiprocessor twice, none shorter than 256 keys.
int SplitsFor(const PagedSegments& segments, int64_t head_groups) {
  constexpr int64_t kBlocksWanted = 264;
  int64_t rows = 0, keys = 0;
  for (const Segment& s : segments.list.host) {
    rows += s.q_len;
    keys = std::max(keys, s.kv_len);
  }
  const int64_t wanted = kBlocksWanted / std::max<int64_t>(1, rows * head_groups);
  return static_cast<int>(std::max<int64_t>(1, std::min(wanted, CeilDiv<int64_t>(keys, 256))));
}

template <int kHeads>
void Attend(const KernelContext& context, const MlaDims& dims, ConstMatrix queries,
            const PagedSegments& segments, const Paged& paged, Matrix out) {
  const auto heads = static_cast<int>(dims.num_heads), rank = static_cast<int>(dims.rank);
  const auto groups = CeilDiv<int64_t>(dims.num_heads, kHeads);
  const int splits = SplitsFor(segments, groups);
  const auto count = static_cast<unsigned>(segments.list.size());
  const unsigned longest = Longest(segments);
  const size_t shared = static_cast<size_t>(kHeads * dims.record() + kKeys * (dims.record() + 2) + 2) * 2 +
                        kHeads * kKeys * sizeof(float);
  PERIGEE_CUDA_CHECK(cudaFuncSetAttribute(AttendKernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)));
  const int64_t parts = splits == 1 ? 0 : queries.rows * heads * splits;
  const Partials partials{context.workspace->Floats(parts), context.workspace->Floats(parts),
                          context.workspace->Floats(parts * rank)};
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.qk()));
  AttendKernel<kHeads>
      <<<dim3(longest, count, static_cast<unsigned>(groups * splits)), kThreads, shared, StreamOf(context)>>>(
          ViewOf<__nv_bfloat16>(queries), paged, heads, rank, splits, scale, partials,
          ViewOf<__nv_bfloat16>(out));
  if (splits > 1) {
    MergeKernel<<<dim3(longest, count, static_cast<unsigned>(heads)), kThreads, 0, StreamOf(context)>>>(
        paged.segments, heads, rank, splits, partials, ViewOf<__nv_bfloat16>(out));
  }
  CheckLaunch();
}

}  // namespace

void MlaAppend(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
               const PagedSegments& segments, const PagedKvView& cache) {
  if (segments.list.empty()) return;
  PERIGEE_CHECK(latent.dtype == DType::kBF16 && shared_key.dtype == DType::kBF16);
  const Paged paged = PagedOf(context, segments, cache);
  AppendKernel<<<dim3(Longest(segments), static_cast<unsigned>(segments.list.size())), kThreads, 0,
                 StreamOf(context)>>>(ViewOf<__nv_bfloat16>(latent), ViewOf<__nv_bfloat16>(shared_key), paged,
                                      static_cast<__nv_bfloat16*>(cache.data));
  CheckLaunch();
}

void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
               const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  if (q.rows == 0 || segments.list.empty()) return;
  PERIGEE_CHECK(dims.rank <= kMaxRank);
  const Workspace::Scope scope(*context.workspace);
  const int64_t heads = dims.num_heads, record = dims.record();
  const int64_t weight_step = (dims.nope + dims.value) * dims.rank;
  const Matrix queries = context.Room(q.rows, heads * record);
  RunProduct(context, {.x = q.Cols(0, dims.nope),
                       .weight = weights.expand.Rows(),
                       .weight_stride = dims.rank,
                       .transposed = true,
                       .y = queries.Cols(0, dims.rank),
                       .batches = heads,
                       .x_step = dims.qk(),
                       .weight_step = weight_step,
                       .y_step = record});
  const auto from = ViewOf<__nv_bfloat16>(q);
  const auto to = ViewOf<__nv_bfloat16>(queries);
  const int64_t rope = dims.rope, nope = dims.nope, qk = dims.qk(), rank = dims.rank;
  ForElements(context, q.rows, heads * rope, [=] __device__(int64_t r, int64_t i) {
    to.Row(r)[i / rope * record + rank + i % rope] = from.Row(r)[i / rope * qk + nope + i % rope];
  });
  const Matrix contexts = context.Room(q.rows, heads * rank);
  cuda::ZeroRows(context, contexts);
  const Paged paged = PagedOf(context, segments, cache);
  if (heads <= 4) {
    Attend<4>(context, dims, queries, segments, paged, contexts);
  } else {
    Attend<16>(context, dims, queries, segments, paged, contexts);
  }
  RunProduct(context, {.x = contexts.Cols(0, rank),
                       .weight = weights.expand.Rows() + nope * rank,
                       .weight_stride = rank,
                       .y = out.Cols(0, dims.value),
                       .batches = heads,
                       .x_step = rank,
                       .weight_step = weight_step,
                       .y_step = dims.value});
}

void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
                const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  cuda::MlaDecode(context, dims, weights, q, segments, cache, out);
}

}  // namespace perigee::kernels::cuda
