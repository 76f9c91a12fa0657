#include "layers/embedding.h"

#include "kernels/norm/norm.h"

namespace perigee::layers {

Embedding::Embedding(const WeightScope& weights) {
  const StoredTensor& t = weights.Mapped("weight");
  table_ = {t.bytes.data(), t.dtype, t.shape[0], t.shape[1]};
}

void Embedding::Forward(const kernels::KernelContext& context, std::span<const int32_t> ids,
                        MatrixF out) const {
  EmbeddingLookup(context, table_, ids, out);
}

LmHead::LmHead(const WeightScope& weights, float norm_eps)
    : norm_eps_(norm_eps),
      norm_(weights.Floats("model.norm.weight")),
      lm_head_(weights.Linear({"lm_head"})) {}

void LmHead::FinalNorm(const kernels::KernelContext& context, ConstMatrixF hidden,
                       std::span<const int64_t> rows, MatrixF out) const {
  GatherRows(context, hidden, rows, out);
  RmsNorm(context, out, norm_, norm_eps_, out);
}

void LmHead::Logits(const kernels::KernelContext& context, ConstMatrixF normed, MatrixF logits) const {
  Gemm(context, normed, lm_head_, logits);
}

}  // namespace perigee::layers
