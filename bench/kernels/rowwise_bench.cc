#include <cstdint>
#include <memory>
#include <vector>

#include "harness/bench.h"
#include "kernels/activation/activation.h"
#include "kernels/benches.h"
#include "kernels/conv/conv.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::bench {
namespace {

constexpr float kEps = 1e-5f;

double FloatBytes(int64_t rows, int64_t cols, int64_t passes) {
  return static_cast<double>(rows * cols * passes) * sizeof(float);
}

// Two inputs and an output of one shape.
struct Operands {
  Operands(int64_t rows, int64_t cols) : a(rows, cols), b(rows, cols, -8, 8), y(rows, cols) {}
  BenchMatrix a, b, y;
};

void AddNorms(const ShapeSet& set) {
  const int64_t rows = set.rows(), hidden = set.model.hidden, width = set.model.kda_width();
  AddBench("rms_norm", set, [=](const kernels::KernelContext& context) {
    auto m = std::make_shared<Operands>(rows, hidden);
    const std::vector<float> weight(static_cast<size_t>(hidden), 1.f);
    return Prepared{{.bytes = FloatBytes(rows, hidden, 2)},
                    [=] { kernels::RmsNorm(context, m->a.view(), weight, kEps, m->y.view()); }};
  });
  AddBench("add_rms_norm", set, [=](const kernels::KernelContext& context) {
    auto m = std::make_shared<Operands>(rows, hidden);
    const std::vector<float> weight(static_cast<size_t>(hidden), 1.f);
    return Prepared{{.bytes = FloatBytes(rows, hidden, 4)}, [=] {
                      kernels::AddRmsNorm(context, m->a.view(), m->b.view(), weight, kEps, m->y.view());
                    }};
  });
  AddBench("gated_rms_norm", set, [=, head = set.model.kda_dim](const kernels::KernelContext& context) {
    auto m = std::make_shared<Operands>(rows, width);
    const std::vector<float> weight(static_cast<size_t>(head), 1.f);
    return Prepared{{.bytes = FloatBytes(rows, width, 3)}, [=] {
                      kernels::GatedRmsNorm(context, m->a.view(), m->b.view(), weight, kEps, m->y.view());
                    }};
  });
}

void AddActivations(const ShapeSet& set) {
  const int64_t rows = set.rows(), hidden = set.model.hidden, dense = set.model.dense_width;
  AddBench("silu_mul", set, [=](const kernels::KernelContext& context) {
    auto m = std::make_shared<Operands>(rows, dense);
    return Prepared{{.bytes = FloatBytes(rows, dense, 3)},
                    [=] { kernels::SiluMul(context, m->b.view(), m->a.view(), m->y.view()); }};
  });
  AddBench("add_in_place", set, [=](const kernels::KernelContext& context) {
    auto m = std::make_shared<Operands>(rows, hidden);
    return Prepared{{.bytes = FloatBytes(rows, hidden, 3)},
                    [=] { kernels::AddInPlace(context, m->a.view(), m->y.view()); }};
  });
}

void AddRowMoves(const ShapeSet& set) {
  const int64_t rows = set.rows(), hidden = set.model.hidden, vocab = set.model.vocab;
  AddBench("gather_rows", set, [=](const kernels::KernelContext& context) {
    auto m = std::make_shared<Operands>(rows, hidden);
    std::vector<int64_t> index(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) index[static_cast<size_t>(i)] = i * 7 % rows;
    return Prepared{{.bytes = FloatBytes(rows, hidden, 2)},
                    [=] { kernels::GatherRows(context, m->a.view(), index, m->y.view()); }};
  });
  AddBench("embedding_bf16", set, [=](const kernels::KernelContext& context) {
    auto table = std::make_shared<BenchWeight>(vocab, hidden);
    auto y = std::make_shared<BenchMatrix>(rows, hidden);
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>(i * 997 % vocab);
    const kernels::StoredTable stored{table->stored().data, DType::kBF16, vocab, hidden};
    return Prepared{{.bytes = FloatBytes(rows, hidden, 1) * 1.5}, [=] {
                      kernels::EmbeddingLookup(context, stored, ids, y->view());
                      (void)table;  // keeps the rows alive
                    }};
  });
}

void AddConvolution(const ShapeSet& set) {
  const int64_t rows = set.rows(), channels = 3 * set.model.kda_width(), width = set.model.conv_width;
  AddBench("causal_conv1d", set, [=](const kernels::KernelContext& context) {
    struct Data {
      BenchMatrix x, y, taps, tails;
      std::vector<Segment> segments;
    };
    auto m = std::make_shared<Data>(Data{
        {rows, channels}, {rows, channels}, {width, channels}, {set.sequences * (width - 1), channels}, {}});
    for (int64_t s = 0; s < set.sequences; ++s) {
      m->segments.push_back(
          {.q_begin = s * set.rows_each, .q_len = set.rows_each, .slot = static_cast<int32_t>(s)});
    }
    const Work work{.flops = 2.0 * static_cast<double>(rows * channels * width),
                    .bytes = FloatBytes(rows, channels, 2)};
    const StateView states{.conv = m->tails.view().data, .conv_stride = (width - 1) * channels};
    return Prepared{work, [=] {
                      kernels::CausalConv1d(context, m->x.view(), m->taps.view(), m->segments, states,
                                            m->y.view());
                    }};
  });
}

}  // namespace

void AddRowwiseBenches(const ShapeSet& set) {
  AddNorms(set);
  AddActivations(set);
  AddRowMoves(set);
  AddConvolution(set);
}

}  // namespace perigee::bench
