#include "layers/embedding.h"

#include <algorithm>

#include "kernels/norm/norm.h"

namespace perigee::layers {

Embedding::Embedding(const Shard& shard, const WeightScope& weights) {
  const StoredTensor& t = weights.Mapped("weight");
  table_ = {t.bytes.data(), t.dtype, t.shape[0], t.shape[1]};
  share_ = shard.Of(table_.rows);
}

void Embedding::Forward(const kernels::KernelContext& context, std::span<const int32_t> ids,
                        MatrixF out) const {
  EmbeddingLookup(context, table_, ids, out);
}

void Embedding::ForwardShare(const kernels::KernelContext& context, std::span<const int32_t> ids,
                             MatrixF out) const {
  std::vector<int32_t> own;
  std::vector<int64_t> places;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < share_.begin || ids[i] >= share_.end) continue;
    own.push_back(ids[i]);
    places.push_back(static_cast<int64_t>(i));
  }
  const kernels::Workspace::Scope scope(*context.workspace);
  const auto count = static_cast<int64_t>(own.size());
  const MatrixF looked_up(context.workspace->Floats(count * out.cols), count, out.cols);
  EmbeddingLookup(context, table_, own, looked_up);
  std::fill_n(out.data, out.rows * out.cols, 0.0f);
  ScatterRows(context, looked_up, places, out);
}

LmHead::LmHead(int64_t vocab_size, const Shard& shard, const WeightScope& weights, float norm_eps)
    : vocabulary_(shard.Of(vocab_size)),
      norm_eps_(norm_eps),
      norm_(weights.Floats("model.norm.weight")),
      lm_head_(weights.Linear({{"lm_head", vocabulary_}})) {}

void LmHead::FinalNorm(const kernels::KernelContext& context, ConstMatrixF hidden, MatrixF out) const {
  RmsNorm(context, hidden, norm_, norm_eps_, out);
}

void LmHead::Logits(const kernels::KernelContext& context, ConstMatrixF normed, MatrixF logits) const {
  Gemm(context, normed, lm_head_, logits);
}

}  // namespace perigee::layers
