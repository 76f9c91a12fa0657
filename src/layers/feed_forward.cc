#include "layers/feed_forward.h"

#include "base/check.h"
#include "base/strings.h"

namespace perigee::layers {
namespace {

struct MlpNames {
  const char* gate;
  const char* up;
  const char* down;
};
constexpr MlpNames kMlp = {"gate_proj", "up_proj", "down_proj"};
constexpr MlpNames kExpert = {"w1", "w3", "w2"};

// Columns `range` of an MLP's width, its down product summed in the parts that `bounds` tells.
kernels::MlpWeights LoadMlp(const WeightScope& weights, const MlpNames& names, Range range,
                            std::vector<int64_t> bounds) {
  kernels::MlpWeights mlp;
  mlp.gate_up = weights.Linear({{names.gate, range}, {names.up, range}});
  mlp.down = weights.LinearCols(names.down, range);
  mlp.bounds = std::move(bounds);
  return mlp;
}

// How the sum over experts and their widths is cut. With one expert group every rank has all experts and a
// share of their width; the parts are parts of the width. With as many groups as shares every rank has whole
// experts; the parts are ranges of experts. In between, and where shares do not divide the parts, a rank's
// sum is one part.
struct ExpertCut : parallel::ExpertShare {
  std::vector<int64_t> bounds;  // of one expert's down product
  int64_t parts = 1;
};

ExpertCut CutExperts(const MoeOptions& options, const Shard& shard) {
  ExpertCut cut;
  static_cast<parallel::ExpertShare&>(cut) = ExpertsOf(shard, options.num_experts, options.width);
  const std::vector<int64_t> shared_bounds = shard.PartBounds(options.width);
  cut.parts = static_cast<int64_t>(shared_bounds.size()) - 1;
  if (shard.expert_groups == 1) {
    cut.bounds = shared_bounds;
  } else {
    cut.bounds = {0, cut.width.size()};
    if (shard.expert_groups != shard.total) cut.parts = 1;
  }
  return cut;
}

}  // namespace

DenseMlp::DenseMlp(int64_t width, const Shard& shard, const WeightScope& weights)
    : mlp_(LoadMlp(weights, kMlp, shard.Of(width), shard.PartBounds(width))) {}

void DenseMlp::Forward(const kernels::KernelContext& context, ConstMatrix x, Matrix y) const {
  GatedMlp(context, mlp_, x, y);
}

Moe::Moe(const MoeOptions& options, const Shard& shard, const WeightScope& weights)
    : options_(options),
      gate_(weights.Linear({{"gate", std::nullopt}})),
      correction_bias_(weights.Parameters("gate.e_score_correction_bias")) {
  const ExpertCut cut = CutExperts(options, shard);
  const WeightScope experts = weights.In("experts");
  experts_.first_expert = cut.experts.begin;
  experts_.parts = cut.parts;
  for (int64_t e = cut.experts.begin; e < cut.experts.end; ++e) {
    kernels::MlpWeights expert = LoadMlp(experts.In(StrCat(e)), kExpert, cut.width, cut.bounds);
    // Whole experts: the part of the sum that the expert's range makes up.
    if (shard.expert_groups > 1 && cut.parts > 1) {
      while (PartBegin(shard.share * cut.parts + expert.first_part + 1, options.num_experts,
                       kernels::kSumParts) <= e) {
        ++expert.first_part;
      }
    }
    experts_.experts.push_back(std::move(expert));
  }
  if (options.shared_width > 0) {
    std::vector<int64_t> bounds = shard.PartBounds(options.shared_width);
    if (cut.parts == 1) bounds = {0, bounds.back()};
    experts_.shared =
        LoadMlp(weights.In("shared_experts"), kMlp, shard.Of(options.shared_width), std::move(bounds));
  }
  ListExperts(experts_);
}

void Moe::Forward(const kernels::KernelContext& context, ConstMatrix x, Matrix y) const {
  const kernels::Workspace::Scope scope(*context.workspace);
  const Matrix logits = context.Room(x.rows, options_.num_experts, DType::kF32);
  Gemm(context, x, gate_, logits);
  const kernels::Routing routing = RouteTopK(context, logits, correction_bias_, options_.router);
  MoeForward(context, experts_, routing, x, y);
}

}  // namespace perigee::layers
