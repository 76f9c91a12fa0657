#include "layers/kda_attention.h"

#include <cmath>

#include "kernels/conv/conv.h"
#include "kernels/kda/kda.h"
#include "kernels/norm/norm.h"

namespace perigee::layers {
namespace {

// Taps of three convolutions [channels, 1, width] side by side, turned to [width, 3 * channels].
std::vector<float> ConvTaps(const WeightScope& weights, int64_t channels, int64_t width) {
  std::vector<float> taps(static_cast<size_t>(3 * channels * width));
  int64_t first = 0;
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    const std::vector<float> stored = weights.Floats(name);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t m = 0; m < width; ++m) {
        taps[static_cast<size_t>(m * 3 * channels + first + c)] = stored[static_cast<size_t>(c * width + m)];
      }
    }
    first += channels;
  }
  return taps;
}

}  // namespace

KdaAttention::KdaAttention(const KdaOptions& options, const WeightScope& weights)
    : options_(options),
      width_(options.num_heads * options.head_dim),
      in_proj_(weights.Linear({"q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"})),
      f_b_proj_(weights.Linear({"f_b_proj"})),
      g_b_proj_(weights.Linear({"g_b_proj"})),
      o_proj_(weights.Linear({"o_proj"})),
      o_parts_(kernels::SumPartBounds(width_)),
      conv_taps_(ConvTaps(weights, width_, options.conv_width)),
      dt_bias_(weights.Floats("dt_bias")),
      neg_exp_a_(weights.Floats("A_log")),
      o_norm_(weights.Floats("o_norm.weight")) {
  // Converters pad A_log with entries that belong to no head; the checkpoint's check has refused a shorter
  // one.
  neg_exp_a_.resize(static_cast<size_t>(options.num_heads));
  for (float& a : neg_exp_a_) a = -std::exp(a);
}

void KdaAttention::Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::Workspace::Scope scope(*k.workspace);
  const int64_t rows = x.rows;
  const int64_t rank = options_.gate_rank;
  const auto room = [&](int64_t cols) { return MatrixF(k.workspace->Floats(rows * cols), rows, cols); };

  const MatrixF projected = room(in_proj_.out());
  Gemm(k, x, in_proj_, projected);
  const MatrixF beta = projected.Cols(3 * width_, options_.num_heads);
  Sigmoid(k, beta, beta);
  const MatrixF g = room(width_);
  Gemm(k, projected.Cols(3 * width_ + options_.num_heads, rank), f_b_proj_, g);
  KdaGate(k, g, dt_bias_, neg_exp_a_, g);
  const MatrixF output_gate = room(width_);
  Gemm(k, projected.Cols(3 * width_ + options_.num_heads + rank, rank), g_b_proj_, output_gate);

  const MatrixF mixed = room(width_);
  Mix(step, projected.Cols(0, 3 * width_), g, beta, mixed);
  GatedRmsNorm(k, mixed, output_gate, o_norm_, options_.norm_eps, mixed);
  GemmInParts(k, mixed, o_proj_, o_parts_, y);
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
  const kernels::KdaArgs args{.num_heads = options_.num_heads,
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
