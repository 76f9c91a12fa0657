#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/mla/mla.h"
#include "layers/attention.h"
#include "layers/weight_scope.h"
#include "parallel/shard.h"
#include "tensor/parameter.h"

namespace perigee::layers {

struct MlaOptions {
  kernels::MlaDims dims;  // num_heads of the whole model
  int64_t kv_layer = 0;   // index of the layer in the latent pool
};

// Multi-head latent attention without positional encoding (kimi-linear specification 3.5). Generated rows are
// evaluated absorbed, prompt rows as the step's layout says (materialised where results must not depend on
// how a prompt is cut). Given all rows it works with the heads of its share; given this rank's rows of a
// sharded step, with the heads of all the shares it holds, after gathering the new latents. The pool holds
// every record on every rank.
class MlaAttention final : public Attention {
 public:
  // weights: the scope "model.layers.{l}.self_attn.".
  MlaAttention(const MlaOptions& options, const Shard& shard, const WeightScope& weights);
  Status Forward(const StepContext& step, ConstMatrix x, const RowChoice* chosen, Matrix y) const override;

 private:
  // The weights of one share's heads.
  struct Heads {
    kernels::MlaDims dims;
    kernels::PackedWeight q_proj;
    kernels::MlaWeights kv_b;
  };

  bool ReadsLatents(const StepContext& step) const;
  // Latents of all rows into the pool.
  Status Append(const StepContext& step, ConstMatrix x, bool sharded) const;

  MlaOptions options_;
  int64_t own_ = 0;          // place of the rank's share in held_
  std::vector<Heads> held_;  // by share
  kernels::PackedWeight kv_a_proj_;
  Parameter kv_a_layernorm_;         // [kv_lora_rank]
  kernels::PackedWeight o_proj_;     // columns of all held heads
  std::vector<int64_t> held_parts_;  // of the sum over all held columns
  std::vector<int64_t> own_parts_;   // of the sum over the own share's columns (not relative)
};

}  // namespace perigee::layers
