#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/rows/rows.h"
#include "layers/weight_scope.h"
#include "tensor/matrix.h"

namespace perigee::layers {

// Token ids to rows. The table is read where it lies in the mapped checkpoint.
class Embedding {
 public:
  // weights: the scope "model.embed_tokens.".
  explicit Embedding(const WeightScope& weights);
  // out [ids.size(), hidden].
  void Forward(const kernels::KernelContext& context, std::span<const int32_t> ids, MatrixF out) const;

 private:
  kernels::StoredTable table_;
};

// Final norm of chosen rows, and their logits.
class LmHead {
 public:
  // weights: the checkpoint's root.
  LmHead(const WeightScope& weights, float norm_eps);
  // out[i] = norm(hidden[rows[i]]), [rows.size(), hidden].
  void FinalNorm(const kernels::KernelContext& context, ConstMatrixF hidden, std::span<const int64_t> rows,
                 MatrixF out) const;
  // logits [rows, vocab].
  void Logits(const kernels::KernelContext& context, ConstMatrixF normed, MatrixF logits) const;

 private:
  float norm_eps_;
  std::vector<float> norm_;
  kernels::PackedWeight lm_head_;
};

}  // namespace perigee::layers
