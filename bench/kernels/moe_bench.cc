#include <memory>
#include <set>
#include <vector>

#include "harness/bench.h"
#include "kernels/benches.h"
#include "kernels/moe/moe.h"

namespace perigee::bench {
namespace {

kernels::MlpWeights RandomMlp(int64_t hidden, int64_t width) {
  return {.gate_up = PackedBenchWeight(2 * width, hidden),
          .down = PackedBenchWeight(hidden, width),
          .bounds = kernels::SumPartBounds(width)};
}

double MlpFlops(int64_t hidden, int64_t width) {
  return 6.0 * static_cast<double>(hidden * width);
}

double MlpBytes(const kernels::MlpWeights& weights) {
  return static_cast<double>(weights.gate_up.Bytes() + weights.down.Bytes());
}

struct MoeData {
  MoeData(const ShapeSet& set, const kernels::KernelContext& context)
      : x(set.rows(), set.model.hidden),
        y(set.rows(), set.model.hidden),
        logits(set.rows(), set.model.experts, -4.f, 4.f),
        bias(static_cast<size_t>(set.model.experts), 0.1f) {
    for (int64_t e = 0; e < set.model.experts; ++e) {
      weights.experts.push_back(RandomMlp(set.model.hidden, set.model.expert_width));
    }
    weights.shared = RandomMlp(set.model.hidden, set.model.expert_width);
    routing = kernels::RouteTopK(context, logits.view(), bias,
                                 {.top_k = set.model.experts_used, .scaling_factor = 2.446f});
  }

  double BytesRead() const {
    double bytes = MlpBytes(weights.shared);
    for (const int32_t e : std::set<int32_t>(routing.experts.begin(), routing.experts.end())) {
      bytes += MlpBytes(weights.experts[static_cast<size_t>(e)]);
    }
    return bytes;
  }

  BenchMatrix x, y, logits;
  std::vector<float> bias;
  kernels::MoeWeights weights;
  kernels::Routing routing;
};

}  // namespace

void AddMoeBenches(const ShapeSet& set) {
  const ModelShape m = set.model;
  const auto rows = static_cast<double>(set.rows());
  AddBench("route_top_k", set, [=](const kernels::KernelContext& context) {
    auto logits = std::make_shared<BenchMatrix>(set.rows(), m.experts, -4.f, 4.f);
    const std::vector<float> bias(static_cast<size_t>(m.experts), 0.1f);
    const kernels::RouterOptions options{.top_k = m.experts_used, .scaling_factor = 2.446f};
    return Prepared{{.bytes = sizeof(float) * rows * static_cast<double>(m.experts)},
                    [=] { kernels::RouteTopK(context, logits->view(), bias, options); }};
  });
  AddBench("gated_mlp", set, [=](const kernels::KernelContext& context) {
    auto x = std::make_shared<BenchMatrix>(set.rows(), m.hidden);
    auto y = std::make_shared<BenchMatrix>(set.rows(), m.hidden);
    auto weights = std::make_shared<kernels::MlpWeights>(RandomMlp(m.hidden, m.dense_width));
    return Prepared{{.flops = rows * MlpFlops(m.hidden, m.dense_width), .bytes = MlpBytes(*weights)},
                    [=] { kernels::GatedMlp(context, *weights, x->view(), y->view()); }};
  });
  AddBench("moe_forward", set, [=](const kernels::KernelContext& context) {
    auto data = std::make_shared<MoeData>(set, context);
    const double flops = rows * MlpFlops(m.hidden, m.expert_width) * static_cast<double>(m.experts_used + 1);
    return Prepared{
        {.flops = flops, .bytes = data->BytesRead()},
        [=] { kernels::MoeForward(context, data->weights, data->routing, data->x.view(), data->y.view()); }};
  });
}

}  // namespace perigee::bench
