#include "kernels/moe/moe_cuda.h"

#include <vector>

#include "base/check.h"
#include "kernels/moe/moe_sm90.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {
namespace {

using Bf16 = __nv_bfloat16;

cudaStream_t StreamOf(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

MoeShape ShapeOf(const MoeWeights& weights) {
  const PackedWeight& down = weights.experts[0].down;
  return {.experts = static_cast<int>(weights.experts.size()),
          .shared = weights.table.shared,
          .hidden = static_cast<int>(down.out()),
          .width = static_cast<int>(down.in())};
}

bool Aligned(const ConstMatrix& m) {
  return m.stride % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

}  // namespace

void ListExperts(MoeWeights& weights) {
  const PackedWeight& first = weights.experts[0].down;
  weights.table.shared = weights.shared.down.in() == first.in();
  std::vector<const Bf16*> gate_up, down;
  const auto add = [&](const MlpWeights& e) {
    gate_up.push_back(reinterpret_cast<const Bf16*>(e.gate_up.Rows()));
    down.push_back(reinterpret_cast<const Bf16*>(e.down.Rows()));
  };
  for (const MlpWeights& e : weights.experts) add(e);
  if (weights.table.shared) add(weights.shared);
  if (const MoeShape shape = ShapeOf(weights); MoeTakes(shape)) {
    std::vector<std::byte> maps;
    PERIGEE_CUDA_CHECK(MoeTensorMaps(shape, gate_up, down, maps));
    weights.table.maps = Buffer::Of(maps.data(), maps.size(), first.device());
  }
  std::vector<const Bf16*> all = gate_up;
  all.insert(all.end(), down.begin(), down.end());
  weights.table.addresses = Buffer::Of(all.data(), all.size() * sizeof(all[0]), first.device());
}

void RouteTopK(const KernelContext& context, ConstMatrixF logits, std::span<const float> bias,
               const RouterOptions& options, const Routing& routing) {
  if (logits.rows == 0) return;
  if (logits.cols > kMoeMaxExperts || options.top_k > kMoeMaxTopK) {
    RouteTopKPlain(context, logits, bias, options, routing);
    return;
  }
  const MoeRouteArgs args{.logits = logits.data,
                          .logits_stride = logits.stride,
                          .bias = bias.data(),
                          .rows = logits.rows,
                          .experts = static_cast<int>(logits.cols),
                          .top_k = static_cast<int>(options.top_k),
                          .renormalize = options.renormalize,
                          .scaling_factor = options.scaling_factor,
                          .valid_rows = context.valid_rows,
                          .chosen = routing.experts.data(),
                          .weights = routing.weights.data()};
  PERIGEE_CUDA_CHECK(MoeRoute(args, StreamOf(context)));
}

void MoeForward(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                ConstMatrix x, Matrix y) {
  if (x.rows == 0) return;
  PERIGEE_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16);
  if (weights.table.maps.data() == nullptr || routing.top_k > kMoeMaxTopK || !Aligned(x) || !Aligned(y)) {
    MoeForwardPlain(context, weights, routing, x, y);
    return;
  }
  const Workspace::Scope scope(*context.workspace);
  MoeForwardArgs args;
  args.shape = ShapeOf(weights);
  args.gate_up = weights.table.addresses.As<const Bf16* const>();
  args.down = args.gate_up + args.shape.held();
  args.maps = weights.table.maps.data();
  args.x = reinterpret_cast<const Bf16*>(x.data);
  args.x_stride = x.stride;
  args.rows = x.rows;
  args.chosen = routing.experts.data();
  args.weights = routing.weights.data();
  args.top_k = static_cast<int>(routing.top_k);
  args.first_expert = static_cast<int>(weights.first_expert);
  if (!args.shape.shared && weights.shared.down.in() > 0) {
    const Matrix addend = context.Room(x.rows, x.cols);
    GatedMlp(context, weights.shared, x, addend);
    args.addend = reinterpret_cast<const Bf16*>(addend.data);
  }
  args.y = reinterpret_cast<Bf16*>(y.data);
  args.y_stride = y.stride;
  args.workspace = context.workspace->Bytes(MoeWorkspaceBytes(args.shape, args.rows, args.top_k));
  PERIGEE_CUDA_CHECK(MoeForward(args, StreamOf(context)));
}

}  // namespace perigee::kernels::cuda
