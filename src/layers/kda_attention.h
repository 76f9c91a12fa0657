#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/kda/kda.h"
#include "layers/attention.h"
#include "layers/weight_scope.h"
#include "parallel/halo_exchange.h"
#include "parallel/segment_scan.h"
#include "parallel/shard.h"
#include "tensor/parameter.h"

namespace perigee::layers {

struct KdaOptions {
  int64_t num_heads = 0;   // of the whole model
  int64_t head_dim = 0;    // key width = value width
  int64_t gate_rank = 0;   // inner width of f_a/f_b and g_a/g_b
  int64_t conv_width = 0;  // short_conv_kernel_size
  float norm_eps = 0;
  int64_t state_layer = 0;  // index of the layer in the recurrent-state pool
};

// Kimi Delta Attention (kimi-linear specification 3.4): projections, short convolution, gates, delta rule,
// gated norm. Given all rows of the step it works with the heads of its share, and the result owes a sum over
// shares; given this rank's rows (the state mode), with the heads of all the shares it holds, after
// exchanging what the rows of each rank do to the state. The pool holds the share's heads.
class KdaAttention final : public Attention {
 public:
  // weights: the scope "model.layers.{l}.self_attn.".
  KdaAttention(const KdaOptions& options, const Shard& shard, const WeightScope& weights);
  Status Forward(const StepContext& step, ConstMatrix x, const RowChoice* chosen, Matrix y) const override;

  // Outputs of the fused input projection of the share: q, k and v channels; f_a and g_a; b.
  std::vector<int64_t> InProjSplit() const;

 private:
  // The weights of some heads, neighbours.
  struct Heads {
    Range heads;
    int64_t width = 0;              // heads * head_dim
    kernels::PackedWeight in_proj;  // rows q | k | v of the heads, f_a | g_a whole, b of the heads
    kernels::PackedWeight f_b_proj;
    kernels::PackedWeight g_b_proj;
    kernels::PackedWeight o_proj;  // columns of the heads
    std::vector<int64_t> o_parts;
    Parameter conv_taps;  // [conv_width, 3 * width]: q | k | v channels
    Parameter dt_bias;    // [width]
    Parameter neg_exp_a;  // [heads]: -exp(A_log)
  };
  // The rows as they come from the projections.
  struct Rows {
    Matrix qkv;          // before convolution
    Matrix z;            // log decays before their activation
    Matrix beta_logits;  // write strengths before their sigmoid
    Matrix gate_in;      // what g_b makes the output gate of
  };

  Heads Load(const WeightScope& weights, Range heads, std::vector<int64_t> o_parts) const;
  Rows Project(const kernels::KernelContext& k, const Heads& h, ConstMatrix x) const;
  // The delta rule over whole segments, and over one row of each sequence with the gated norm after it.
  void Mix(const StepContext& step, const Heads& h, const Rows& rows, Matrix out) const;
  void Advance(const StepContext& step, const Heads& h, const Rows& rows, Matrix out) const;
  // The same for this rank's rows of a sharded step.
  Status MixSegments(const StepContext& step, const Heads& h, const Rows& rows, Matrix out) const;
  // Convolves this rank's pieces, each after the rows before it.
  Matrix ConvolvePieces(const StepContext& step, const Heads& h, ConstMatrix qkv,
                        const parallel::HaloExchange& halo) const;
  void KeepShares(const StepContext& step, const Heads& h, const parallel::HaloExchange& halo,
                  std::vector<parallel::SegmentScan::Wish>& wishes) const;
  kernels::KdaArgs ArgsOf(const kernels::KernelContext& k, const Heads& h, ConstMatrix convolved,
                          const Rows& rows, Matrix out) const;

  KdaOptions options_;
  Heads own_;                  // the share's
  std::optional<Heads> held_;  // all that the rank holds, where the state mode can be asked for
  Parameter o_norm_;           // [head_dim]
};

}  // namespace perigee::layers
