#include "layers/kda_attention.h"

#include <cmath>

#include "kernels/conv/conv.h"
#include "kernels/kda/kda.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::layers {
namespace {

Range Channels(Range heads, int64_t head_dim) {
  return {heads.begin * head_dim, heads.end * head_dim};
}

// Taps of the share's channels of three convolutions [channels, 1, width] side by side, turned to [width, 3 *
// channels].
std::vector<float> ConvTaps(const WeightScope& weights, Range channels, int64_t width) {
  const int64_t count = channels.size();
  std::vector<float> taps(static_cast<size_t>(3 * count * width));
  int64_t first = 0;
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    const std::vector<float> stored = weights.Floats(name, {channels.begin * width, channels.end * width});
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t m = 0; m < width; ++m) {
        taps[static_cast<size_t>(m * 3 * count + first + c)] = stored[static_cast<size_t>(c * width + m)];
      }
    }
    first += count;
  }
  return taps;
}

kernels::PackedWeight InProj(const WeightScope& weights, Range heads, Range channels) {
  return weights.Linear({{"q_proj", channels},
                         {"k_proj", channels},
                         {"v_proj", channels},
                         {"b_proj", heads},
                         {"f_a_proj", std::nullopt},
                         {"g_a_proj", std::nullopt}});
}

}  // namespace

KdaAttention::KdaAttention(const KdaOptions& options, const Shard& shard, const WeightScope& weights)
    : options_(options),
      heads_(shard.Of(options.num_heads)),
      width_(heads_.size() * options.head_dim),
      in_proj_(InProj(weights, heads_, Channels(heads_, options.head_dim))),
      f_b_proj_(weights.Linear({{"f_b_proj", Channels(heads_, options.head_dim)}})),
      g_b_proj_(weights.Linear({{"g_b_proj", Channels(heads_, options.head_dim)}})),
      o_proj_(weights.LinearCols("o_proj", Channels(heads_, options.head_dim))),
      o_parts_(shard.PartBounds(options.num_heads * options.head_dim)),
      conv_taps_(ConvTaps(weights, Channels(heads_, options.head_dim), options.conv_width)),
      dt_bias_(weights.Floats("dt_bias", Channels(heads_, options.head_dim))),
      neg_exp_a_(weights.Floats("A_log", heads_)),
      o_norm_(weights.Floats("o_norm.weight")) {
  for (float& a : neg_exp_a_) a = -std::exp(a);
}

std::vector<int64_t> KdaAttention::InProjSplit() const {
  return {3 * width_, heads_.size(), 2 * options_.gate_rank};
}

Status KdaAttention::Forward(const StepContext& step, ConstMatrixF x,
                             std::optional<std::span<const int64_t>> chosen, MatrixF y) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::Workspace::Scope scope(*k.workspace);
  const int64_t rows = x.rows;
  const int64_t rank = options_.gate_rank;
  const auto room = [&](int64_t count, int64_t cols) {
    return MatrixF(k.workspace->Floats(count * cols), count, cols);
  };

  const MatrixF projected = room(rows, in_proj_.out());
  Gemm(k, x, in_proj_, projected);
  const MatrixF beta = projected.Cols(3 * width_, heads_.size());
  Sigmoid(k, beta, beta);
  const MatrixF g = room(rows, width_);
  Gemm(k, projected.Cols(3 * width_ + heads_.size(), rank), f_b_proj_, g);
  KdaGate(k, g, dt_bias_, neg_exp_a_, g);
  MatrixF mixed = room(rows, width_);
  Mix(step, projected.Cols(0, 3 * width_), g, beta, mixed);

  MatrixF gate_in = projected.Cols(3 * width_ + heads_.size() + rank, rank);
  if (chosen) {
    const MatrixF chosen_mixed = room(y.rows, width_);
    const MatrixF chosen_gate_in = room(y.rows, rank);
    GatherRows(k, mixed, *chosen, chosen_mixed);
    GatherRows(k, gate_in, *chosen, chosen_gate_in);
    mixed = chosen_mixed;
    gate_in = chosen_gate_in;
  }
  const MatrixF output_gate = room(y.rows, width_);
  Gemm(k, gate_in, g_b_proj_, output_gate);
  GatedRmsNorm(k, mixed, output_gate, o_norm_, options_.norm_eps, mixed);
  GemmInParts(k, mixed, o_proj_, o_parts_, y);
  return Status::Ok();
}

void KdaAttention::Mix(const StepContext& step, ConstMatrixF qkv, ConstMatrixF g, ConstMatrixF beta,
                       MatrixF out) const {
  const kernels::KernelContext& k = step.kernels;
  const StateView states = step.states.View(options_.state_layer);
  std::vector<kernels::ConvSegment> conv_segments;
  std::vector<kernels::KdaSegment> kda_segments;
  for (const batch::SeqSpan& span : step.batch.spans) {
    const int32_t slot = step.batch.state_slots[static_cast<size_t>(span.seq)];
    conv_segments.push_back({span.q_begin, span.q_len, states.Conv(slot)});
    kda_segments.push_back({span.q_begin, span.q_len, states.Recurrent(slot)});
  }
  const MatrixF convolved(k.workspace->Floats(qkv.rows * qkv.cols), qkv.rows, qkv.cols);
  CausalConv1d(k, qkv, {conv_taps_.data(), options_.conv_width, 3 * width_}, conv_segments, convolved);
  const kernels::KdaArgs args{.num_heads = heads_.size(),
                              .key_dim = options_.head_dim,
                              .value_dim = options_.head_dim,
                              .q = convolved.Cols(0, width_),
                              .k = convolved.Cols(width_, width_),
                              .v = convolved.Cols(2 * width_, width_),
                              .g = g,
                              .beta = beta,
                              .segments = kda_segments,
                              .out = out};
  if (step.batch.phase == batch::Phase::kPrefill) {
    KdaPrefill(k, args);
  } else {
    KdaDecode(k, args);
  }
}

}  // namespace perigee::layers
