#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/rows/rows.h"
#include "layers/weight_scope.h"
#include "parallel/shard.h"
#include "tensor/buffer.h"
#include "tensor/matrix.h"
#include "tensor/parameter.h"
#include "tensor/step_span.h"

namespace perigee::layers {

// Token ids to rows. On the CPU the whole table is read where it lies in the mapped checkpoint, which thread
// ranks share.
class Embedding {
 public:
  // weights: the scope "model.embed_tokens.".
  Embedding(const Shard& shard, const WeightScope& weights);
  // out [ids.size(), hidden].
  void Forward(const kernels::KernelContext& context, StepSpan<int32_t> ids, Matrix out) const;
  // The same for the vocabulary rows of this rank's share, zero for other ids: owes a sum over shares.
  void ForwardShare(const kernels::KernelContext& context, StepSpan<int32_t> ids, Matrix out) const;

 private:
  WeightTable table_;
  Range share_;
};

// Final norm of chosen rows, and the logits of the share's part of the vocabulary.
class LmHead {
 public:
  // weights: the checkpoint's root.
  LmHead(int64_t vocab_size, const Shard& shard, const WeightScope& weights, float norm_eps);
  // out = norm(hidden), [rows, hidden]; out may be hidden.
  void FinalNorm(const kernels::KernelContext& context, ConstMatrix hidden, Matrix out) const;
  // logits [rows, vocabulary().size()].
  void Logits(const kernels::KernelContext& context, ConstMatrix normed, Matrix logits) const;
  Range vocabulary() const { return vocabulary_; }

 private:
  Range vocabulary_;
  float norm_eps_;
  Parameter norm_;
  kernels::PackedWeight lm_head_;
};

}  // namespace perigee::layers
