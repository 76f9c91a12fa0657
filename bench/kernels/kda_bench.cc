#include <memory>
#include <vector>

#include "harness/bench.h"
#include "kernels/benches.h"
#include "kernels/kda/kda.h"

namespace perigee::bench {
namespace {

struct KdaData {
  KdaData(int64_t rows, const ModelShape& m, int64_t sequences)
      : q(rows, m.kda_width()),
        k(rows, m.kda_width()),
        v(rows, m.kda_width()),
        g(rows, m.kda_width(), -8.f, -0.001f),
        beta(rows, m.heads, 0.01f, 0.99f),
        out(rows, m.kda_width()),
        states(sequences, m.heads * m.kda_dim * m.kda_dim, 0.f, 0.f) {}

  BenchMatrix q, k, v, g, beta, out, states;
  std::vector<Segment> segments;
};

// Multiply-adds of the form that a step of this kind uses, per row and head (specification 3.4.7).
double FlopsPerRowAndHead(double dim, bool chunked) {
  constexpr double kChunk = kernels::kKdaChunk;
  return chunked ? 6 * dim * dim + 10 * kChunk * dim + kChunk * kChunk * 2 / 3 : 7 * dim * dim + 2 * dim;
}

}  // namespace

void AddKdaBenches(const ShapeSet& set) {
  const ModelShape m = set.model;
  const int64_t rows = set.rows();
  AddBench(set.is_decode() ? "kda_decode" : "kda_prefill", set, [=](const kernels::KernelContext& context) {
    auto data = std::make_shared<KdaData>(rows, m, set.sequences);
    for (int64_t s = 0; s < set.sequences; ++s) {
      data->segments.push_back(
          {.q_begin = s * set.rows_each, .q_len = set.rows_each, .slot = static_cast<int32_t>(s)});
    }
    const kernels::KdaArgs args{
        .num_heads = m.heads,
        .key_dim = m.kda_dim,
        .value_dim = m.kda_dim,
        .q = data->q.view(),
        .k = data->k.view(),
        .v = data->v.view(),
        .g = data->g.view(),
        .beta = data->beta.view(),
        .segments = data->segments,
        .states = {.recurrent = data->states.view().data, .recurrent_stride = data->states.view().stride},
        .out = data->out.view()};
    const double per_row =
        static_cast<double>(m.heads) * FlopsPerRowAndHead(static_cast<double>(m.kda_dim), !set.is_decode());
    const double floats = static_cast<double>(rows * (5 * m.kda_width() + m.heads)) +
                          2.0 * static_cast<double>(data->states.data().size());
    return Prepared{{.flops = per_row * static_cast<double>(rows), .bytes = floats * sizeof(float)},
                    [context, args, data, decode = set.is_decode()] {
                      if (decode) {
                        kernels::KdaDecode(context, args);
                      } else {
                        kernels::KdaPrefill(context, args);
                      }
                    }};
  });
  AddBench("kda_gate", set, [=](const kernels::KernelContext& context) {
    auto z = std::make_shared<BenchMatrix>(rows, m.kda_width(), -10.f, 30.f);
    auto g = std::make_shared<BenchMatrix>(rows, m.kda_width());
    const std::vector<float> dt_bias(static_cast<size_t>(m.kda_width()), 0.1f);
    const std::vector<float> neg_exp_a(static_cast<size_t>(m.heads), -4.f);
    return Prepared{{.bytes = 2.0 * sizeof(float) * static_cast<double>(rows * m.kda_width())},
                    [=] { kernels::KdaGate(context, z->view(), dt_bias, neg_exp_a, g->view()); }};
  });
}

}  // namespace perigee::bench
