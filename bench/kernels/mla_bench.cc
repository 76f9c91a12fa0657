#include <memory>
#include <numeric>
#include <vector>

#include "base/math.h"
#include "harness/bench.h"
#include "kernels/benches.h"
#include "kernels/mla/mla.h"

namespace perigee::bench {
namespace {

constexpr int64_t kBlockTokens = 64;

struct MlaData {
  MlaData(const ShapeSet& set, const kernels::MlaDims& dims)
      : blocks_each(CeilDiv(set.context + set.rows_each, kBlockTokens)),
        weights(kernels::MlaWeights::Pack(
            dims, BenchWeight(dims.num_heads * (dims.nope + dims.value), dims.rank).stored())),
        cache(set.sequences * blocks_each * kBlockTokens, dims.record()),
        q(set.rows(), dims.num_heads * dims.qk()),
        latent(set.rows(), dims.rank),
        shared_key(set.rows(), dims.rope),
        out(set.rows(), dims.num_heads * dims.value),
        tables(static_cast<size_t>(set.sequences * blocks_each)) {
    std::iota(tables.begin(), tables.end(), 0);
    for (int64_t s = 0; s < set.sequences; ++s) {
      segments.push_back({.q_begin = s * set.rows_each,
                          .q_len = set.rows_each,
                          .kv_len = set.context + set.rows_each,
                          .first_block = static_cast<int32_t>(s * blocks_each)});
    }
  }

  PagedKvView view() { return {cache.data().data(), kBlockTokens, cache.view().cols}; }

  int64_t blocks_each;
  kernels::MlaWeights weights;
  BenchMatrix cache, q, latent, shared_key, out;
  std::vector<int32_t> tables;
  std::vector<Segment> segments;
};

// Arithmetic of the form that this step uses: scores and values per visible key, and the expansion of every
// key (prefill) or of every query (decode).
Work MlaWork(const ShapeSet& set, const kernels::MlaDims& d) {
  const auto heads = static_cast<double>(d.num_heads), sequences = static_cast<double>(set.sequences);
  const double keys = static_cast<double>(set.context + set.rows_each);
  const auto q = static_cast<double>(set.rows_each);
  const double pairs = sequences * (q * keys - q * (q - 1) / 2);
  const double per_pair = static_cast<double>(set.is_decode() ? d.record() + d.rank : d.qk() + d.value);
  const double expanded = set.is_decode() ? q : keys;
  const double expansion = static_cast<double>(d.rank * (d.nope + d.value));
  return {.flops = 2 * heads * (pairs * per_pair + sequences * expanded * expansion),
          .bytes = sizeof(float) * sequences * keys * static_cast<double>(d.record())};
}

}  // namespace

void AddMlaBenches(const ShapeSet& set) {
  const ModelShape& m = set.model;
  const kernels::MlaDims dims{m.heads, m.mla_nope, m.mla_rope, m.mla_value, m.mla_rank};
  AddBench(set.is_decode() ? "mla_decode" : "mla_prefill", set, [=](const kernels::KernelContext& context) {
    auto data = std::make_shared<MlaData>(set, dims);
    const auto run = set.is_decode() ? kernels::MlaDecode : kernels::MlaPrefill;
    return Prepared{MlaWork(set, dims), [=] {
                      run(context, dims, data->weights, data->q.view(), {data->segments, data->tables},
                          data->view(), data->out.view());
                    }};
  });
  AddBench("mla_append", set, [=](const kernels::KernelContext& context) {
    auto data = std::make_shared<MlaData>(set, dims);
    return Prepared{{.bytes = 2.0 * sizeof(float) * static_cast<double>(set.rows() * dims.record())}, [=] {
                      kernels::MlaAppend(context, data->latent.view(), data->shared_key.view(),
                                         {data->segments, data->tables}, data->view());
                    }};
  });
}

}  // namespace perigee::bench
