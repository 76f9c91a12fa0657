#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/rows/rows.h"
#include "layers/weight_scope.h"
#include "parallel/shard.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// Token ids to rows. The whole table is read where it lies in the mapped checkpoint, which thread ranks
// share.
class Embedding {
 public:
  // weights: the scope "model.embed_tokens.".
  Embedding(const Shard& shard, const WeightScope& weights);
  // out [ids.size(), hidden].
  void Forward(const kernels::KernelContext& context, std::span<const int32_t> ids, MatrixF out) const;
  // The same for the vocabulary rows of this rank's share, zero for other ids: owes a sum over shares.
  void ForwardShare(const kernels::KernelContext& context, std::span<const int32_t> ids, MatrixF out) const;

 private:
  kernels::StoredTable table_;
  Range share_;
};

// Final norm of chosen rows, and the logits of the share's part of the vocabulary.
class LmHead {
 public:
  // weights: the checkpoint's root.
  LmHead(int64_t vocab_size, const Shard& shard, const WeightScope& weights, float norm_eps);
  // out = norm(hidden), [rows, hidden]; out may be hidden.
  void FinalNorm(const kernels::KernelContext& context, ConstMatrixF hidden, MatrixF out) const;
  // logits [rows, vocabulary().size()].
  void Logits(const kernels::KernelContext& context, ConstMatrixF normed, MatrixF logits) const;
  Range vocabulary() const { return vocabulary_; }

 private:
  Range vocabulary_;
  float norm_eps_;
  std::vector<float> norm_;
  kernels::PackedWeight lm_head_;
};

}  // namespace perigee::layers
