#include "layers/embedding.h"

#include <vector>

#include "kernels/norm/norm.h"

namespace perigee::layers {

Embedding::Embedding(const Shard& shard, const WeightScope& weights)
    : table_(weights.Table("weight")), share_(shard.Of(table_.view.rows)) {}

void Embedding::Forward(const kernels::KernelContext& context, StepSpan<int32_t> ids, Matrix out) const {
  EmbeddingLookup(context, table_.view, ids, out);
}

void Embedding::ForwardShare(const kernels::KernelContext& context, StepSpan<int32_t> ids, Matrix out) const {
  std::vector<int32_t> own;
  std::vector<int64_t> places;
  for (size_t i = 0; i < ids.host.size(); ++i) {
    const int32_t id = ids.host[i];
    if (id < share_.begin || id >= share_.end) continue;
    own.push_back(id);
    places.push_back(static_cast<int64_t>(i));
  }
  const kernels::Workspace::Scope scope(*context.workspace);
  const auto count = static_cast<int64_t>(own.size());
  const Matrix looked_up = context.Room(count, out.cols);
  EmbeddingLookup(context, table_.view, own, looked_up);
  ZeroRows(context, out);
  ScatterRows(context, looked_up, places, out);
}

LmHead::LmHead(int64_t vocab_size, const Shard& shard, const WeightScope& weights, float norm_eps)
    : vocabulary_(shard.Of(vocab_size)),
      norm_eps_(norm_eps),
      norm_(weights.Parameters("model.norm.weight")),
      lm_head_(weights.Linear({{"lm_head", vocabulary_}})) {}

void LmHead::FinalNorm(const kernels::KernelContext& context, ConstMatrix hidden, Matrix out) const {
  RmsNorm(context, hidden, norm_, norm_eps_, out);
}

void LmHead::Logits(const kernels::KernelContext& context, ConstMatrix normed, Matrix logits) const {
  Gemm(context, normed, lm_head_, logits);
}

}  // namespace perigee::layers
