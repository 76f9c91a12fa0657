#include "kernels/mla/mla.h"

#include <vector>

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/mla/mla_cpu.h"
#include "kernels/mla/mla_cuda.h"

namespace perigee::kernels {
namespace {

void CheckSegments(const MlaDims& dims, const PagedSegments& segments, int64_t rows,
                   const PagedKvView& cache) {
  PERIGEE_CHECK(cache.width == dims.record() && cache.block_tokens % cpu::kMlaKeyBlock == 0);
  for (const Segment& s : segments.list.host) {
    PERIGEE_CHECK(s.q_begin >= 0 && s.q_len >= 0 && s.q_begin + s.q_len <= rows && s.kv_len >= s.q_len);
  }
}

std::vector<cpu::MlaSegment> WithTables(const PagedSegments& segments, const PagedKvView& cache) {
  std::vector<cpu::MlaSegment> result;
  for (const Segment& s : segments.list.host) {
    result.push_back({s.q_begin, s.q_len, s.kv_len, s.BlockTable(segments.block_tables, cache.block_tokens)});
  }
  return result;
}

}  // namespace

MlaWeights MlaWeights::Pack(const MlaDims& dims, const StoredMatrix& kv_b, Device device,
                            MemoryLedger* ledger) {
  PERIGEE_CHECK(kv_b.rows == dims.num_heads * (dims.nope + dims.value) && kv_b.cols == dims.rank);
  MlaWeights w;
  w.expand = PackedWeight::Pack(kv_b, device, ledger);
  if (device != Device::kCpu) return w;
  for (int64_t h = 0; h < dims.num_heads; ++h) {
    const StoredMatrix head = kv_b.Rows(h * (dims.nope + dims.value), dims.nope + dims.value);
    w.absorb_q.push_back(PackedWeight::PackTransposed(head.Rows(0, dims.nope), ledger));
    w.absorb_o.push_back(PackedWeight::Pack(head.Rows(dims.nope, dims.value), Device::kCpu, ledger));
  }
  return w;
}

void MlaAppend(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
               const PagedSegments& segments, const PagedKvView& cache) {
  PERIGEE_CHECK(latent.rows == shared_key.rows && latent.cols + shared_key.cols == cache.width);
  PERIGEE_DISPATCH(
      context,
      cpu::MlaAppend(context, latent.As<float>(), shared_key.As<float>(), WithTables(segments, cache), cache),
      cuda::MlaAppend(context, latent, shared_key, segments, cache));
}

void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
                const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  CheckSegments(dims, segments, q.rows, cache);
  PERIGEE_DISPATCH(context,
                   cpu::MlaPrefill(context, dims, weights, q.As<float>(), WithTables(segments, cache), cache,
                                   out.As<float>()),
                   cuda::MlaPrefill(context, dims, weights, q, segments, cache, out));
}

void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
               const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  CheckSegments(dims, segments, q.rows, cache);
  PERIGEE_DISPATCH(context,
                   cpu::MlaDecode(context, dims, weights, q.As<float>(), WithTables(segments, cache), cache,
                                  out.As<float>()),
                   cuda::MlaDecode(context, dims, weights, q, segments, cache, out));
}

}  // namespace perigee::kernels
