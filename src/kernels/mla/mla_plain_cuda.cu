#include <algorithm>

#include "kernels/elementwise_cuda.cuh"
#include "kernels/mla/mla_cuda_parts.h"

// Moves of MLA for every width and alignment.
namespace perigee::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A block a row of a segment.
__global__ void __launch_bounds__(kThreads)
    AppendKernel(View<const __nv_bfloat16> latent, View<const __nv_bfloat16> shared_key,
                 const Segment* segments, const int32_t* block_tables, int64_t block_tokens,
                 __nv_bfloat16* pool) {
  const Segment s = segments[blockIdx.y];
  if (blockIdx.x >= s.q_len) return;
  const int64_t row = s.q_begin + blockIdx.x, position = s.kv_len - s.q_len + blockIdx.x;
  const int64_t block = block_tables[s.first_block + position / block_tokens];
  const int64_t width = latent.cols + shared_key.cols;
  __nv_bfloat16* record = pool + (block * block_tokens + position % block_tokens) * width;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    record[c] = c < latent.cols ? latent.Row(row)[c] : shared_key.Row(row)[c - latent.cols];
  }
}

}  // namespace

void MlaAppendPlain(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
                    const MlaRuns& runs, int64_t longest, const PagedKvView& cache) {
  AppendKernel<<<dim3(static_cast<unsigned>(longest), static_cast<unsigned>(runs.count)), kThreads, 0,
                 StreamOf(context)>>>(ViewOf<__nv_bfloat16>(latent), ViewOf<__nv_bfloat16>(shared_key),
                                      runs.list, runs.block_tables, cache.block_tokens,
                                      static_cast<__nv_bfloat16*>(cache.data));
  CheckLaunch();
}

void CopySharedQueries(const KernelContext& context, const MlaDims& dims, ConstMatrix q, Matrix queries) {
  const auto from = ViewOf<__nv_bfloat16>(q);
  const auto to = ViewOf<__nv_bfloat16>(queries);
  const int64_t rope = dims.rope, nope = dims.nope, qk = dims.qk(), rank = dims.rank, record = dims.record();
  ForElements(context, q.rows, dims.num_heads * rope, [=] __device__(int64_t r, int64_t i) {
    to.Row(r)[i / rope * record + rank + i % rope] = from.Row(r)[i / rope * qk + nope + i % rope];
  });
}

}  // namespace perigee::kernels::cuda
