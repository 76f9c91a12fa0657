#include "kernels/mla/mla_cuda.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gemm/lt_cuda.h"
#include "kernels/mla/mla_cuda_parts.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {
namespace {

bool AreAligned(const ConstMatrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0 && m.cols % 8 == 0;
}

const __nv_bfloat16* Bf16(ConstMatrix m) {
  return reinterpret_cast<const __nv_bfloat16*>(m.As<BFloat16>().data);
}

// Rows of a segment, on average, up to which reading records costs less than expanding them: expanding is a
// third faster an operation, but costs 2 rank (nope + value) a key and head once and moves 29 KB a key.
constexpr int64_t kRowsReadAbsorbed = 32;

bool AreFewRows(std::span<const Segment> segments) {
  int64_t rows = 0;
  for (const Segment& s : segments) rows += s.q_len;
  return rows <= kRowsReadAbsorbed * static_cast<int64_t>(segments.size());
}

// The segments' rows [begin, begin + count), counted from `begin`.
std::vector<Segment> Slice(std::span<const Segment> segments, int64_t begin, int64_t count) {
  std::vector<Segment> result;
  for (Segment s : segments) {
    const int64_t first = std::max(s.q_begin, begin);
    const int64_t end = std::min(s.q_begin + s.q_len, begin + count);
    if (first >= end) continue;
    s.kv_len -= s.q_begin + s.q_len - end;
    s.q_begin = first - begin;
    s.q_len = end - first;
    result.push_back(s);
  }
  return result;
}

// Absorbed queries [rows, num_heads * record] over the records: contexts [rows, num_heads * rank], zero in
// rows of no segment.
void ReadRecords(const KernelContext& context, const MlaDims& dims, Matrix queries,
                 const PagedSegments& segments, const PagedKvView& cache, Matrix contexts) {
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto heads = static_cast<int>(dims.num_heads);
  const bool on_tensor_cores = dims.rank == 512 && dims.rope == 64 && cache.block_tokens % 64 == 0;
  const int64_t most = on_tensor_cores ? kMlaDecodeRows : queries.rows;
  for (int64_t begin = 0; begin < queries.rows; begin += most) {
    const Workspace::Scope scope(*context.workspace);
    const int64_t rows = std::min(most, queries.rows - begin);
    std::vector<Segment> slice;
    PagedSegments part = segments;
    if (rows < queries.rows) {
      slice = Slice(segments.list.host, begin, rows);
      part.list = slice;
    }
    MlaDecodeArgs args{.pool = PoolOf(dims, cache),
                       .runs = RunsOf(context, part),
                       .q = Bf16(queries.Rows(begin, rows)),
                       .rows = static_cast<int>(rows),
                       .num_heads = heads,
                       .scale = 1.0f / std::sqrt(static_cast<float>(dims.qk())),
                       .out = const_cast<__nv_bfloat16*>(Bf16(contexts.Rows(begin, rows)))};
    if (on_tensor_cores) {
      args.workspace = context.workspace->Bytes(MlaDecodeWorkspaceBytes(args.rows, heads));
      PERIGEE_CUDA_CHECK(MlaDecodeHopper(args, stream));
    } else {
      PERIGEE_CUDA_CHECK(MlaDecodePlain(args, stream));
    }
  }
}

}  // namespace

MlaRuns RunsOf(const KernelContext& context, const PagedSegments& segments) {
  const auto on_device = [&](const auto& span) {
    return span.device != nullptr || span.empty() ? span.device : context.step->Mirror(span.host).device;
  };
  return {on_device(segments.list), static_cast<int>(segments.list.size()), on_device(segments.block_tables)};
}

MlaPool PoolOf(const MlaDims& dims, const PagedKvView& cache) {
  PERIGEE_CHECK(cache.dtype == DType::kBF16);
  return {static_cast<__nv_bfloat16*>(cache.data), cache.num_blocks, static_cast<int>(cache.block_tokens),
          static_cast<int>(dims.rank), static_cast<int>(dims.rope)};
}

void MlaAppend(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
               const PagedSegments& segments, const PagedKvView& cache) {
  if (segments.list.empty()) return;
  PERIGEE_CHECK(latent.dtype == DType::kBF16 && shared_key.dtype == DType::kBF16);
  const MlaRuns runs = RunsOf(context, segments);
  if (!AreAligned(latent) || !AreAligned(shared_key)) {
    int64_t longest = 1;
    for (const Segment& s : segments.list.host) longest = std::max(longest, s.q_len);
    return MlaAppendPlain(context, latent, shared_key, runs, longest, cache);
  }
  const MlaDims dims{.rope = shared_key.cols, .rank = latent.cols};
  const MlaAppendArgs args{.pool = PoolOf(dims, cache),
                           .runs = runs,
                           .latent = Bf16(latent),
                           .latent_stride = latent.stride,
                           .shared_key = Bf16(shared_key),
                           .shared_key_stride = shared_key.stride};
  PERIGEE_CUDA_CHECK(MlaAppendRecords(args, static_cast<cudaStream_t>(context.stream.handle)));
}

void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
               const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  if (q.rows == 0 || segments.list.empty()) return;
  const Workspace::Scope scope(*context.workspace);
  const int64_t heads = dims.num_heads;
  const int64_t weight_step = (dims.nope + dims.value) * dims.rank;
  const Matrix queries = context.Room(q.rows, heads * dims.record());
  RunProduct(context, {.x = q.Cols(0, dims.nope),
                       .weight = weights.expand.Rows(),
                       .weight_stride = dims.rank,
                       .transposed = true,
                       .y = queries.Cols(0, dims.rank),
                       .batches = heads,
                       .x_step = dims.qk(),
                       .weight_step = weight_step,
                       .y_step = dims.record()});
  CopySharedQueries(context, dims, q, queries);
  const Matrix contexts = context.Room(q.rows, heads * dims.rank);
  ReadRecords(context, dims, queries, segments, cache, contexts);
  RunProduct(context, {.x = contexts.Cols(0, dims.rank),
                       .weight = weights.expand.Rows() + dims.nope * dims.rank,
                       .weight_stride = dims.rank,
                       .y = out.Cols(0, dims.value),
                       .batches = heads,
                       .x_step = dims.rank,
                       .weight_step = weight_step,
                       .y_step = dims.value});
}

void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
                const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  if (q.rows == 0 || segments.list.empty()) return;
  if (CanExpand(dims, q, cache) && !AreFewRows(segments.list.host)) {
    MlaPrefillExpanded(context, dims, weights, q, segments, cache, out);
  } else {
    cuda::MlaDecode(context, dims, weights, q, segments, cache, out);
  }
}

}  // namespace perigee::kernels::cuda
