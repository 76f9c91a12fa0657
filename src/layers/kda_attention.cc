#include "layers/kda_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "kernels/conv/conv.h"
#include "kernels/kda/kda_step.h"
#include "kernels/kda/kda_summary.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::layers {
namespace {

Range Channels(Range heads, int64_t head_dim) {
  return {heads.begin * head_dim, heads.end * head_dim};
}

// Taps of some channels of three convolutions [channels, 1, width] side by side, turned to [width, 3 *
// channels].
Parameter ConvTaps(const WeightScope& weights, Range channels, int64_t width) {
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
  return weights.Hold(taps);
}

// -exp(A_log).
Parameter NegExpA(const WeightScope& weights, Range heads) {
  std::vector<float> a = weights.Floats("A_log", heads);
  for (float& x : a) x = -std::exp(x);
  return weights.Hold(a);
}

kernels::PackedWeight InProj(const WeightScope& weights, Range heads, Range channels) {
  return weights.Linear({{"q_proj", channels},
                         {"k_proj", channels},
                         {"v_proj", channels},
                         {"f_a_proj", std::nullopt},
                         {"g_a_proj", std::nullopt},
                         {"b_proj", heads}});
}

}  // namespace

KdaAttention::KdaAttention(const KdaOptions& options, const Shard& shard, const WeightScope& weights)
    : options_(options),
      own_(
          Load(weights, shard.Of(options.num_heads), shard.PartBounds(options.num_heads * options.head_dim))),
      o_norm_(weights.Parameters("o_norm.weight")) {
  if (shard.holds_kda) {
    held_ = Load(weights, shard.Held(options.num_heads),
                 shard.PartBounds(options.num_heads * options.head_dim, shard.first_held, shard.num_held));
  }
}

KdaAttention::Heads KdaAttention::Load(const WeightScope& weights, Range heads,
                                       std::vector<int64_t> o_parts) const {
  const Range channels = Channels(heads, options_.head_dim);
  Heads h{.heads = heads,
          .width = channels.size(),
          .in_proj = InProj(weights, heads, channels),
          .f_b_proj = weights.Linear({{"f_b_proj", channels}}),
          .g_b_proj = weights.Linear({{"g_b_proj", channels}}),
          .o_proj = weights.LinearCols("o_proj", channels),
          .o_parts = std::move(o_parts),
          .conv_taps = ConvTaps(weights, channels, options_.conv_width),
          .dt_bias = weights.Parameters("dt_bias", channels),
          .neg_exp_a = NegExpA(weights, heads)};
  return h;
}

std::vector<int64_t> KdaAttention::InProjSplit() const {
  return {3 * own_.width, 2 * options_.gate_rank, own_.heads.size()};
}

KdaAttention::Rows KdaAttention::Project(const kernels::KernelContext& k, const Heads& h,
                                         ConstMatrix x) const {
  // Rows start at 16 bytes whatever the number of heads.
  const int64_t out = h.in_proj.out(), rank = options_.gate_rank;
  const Matrix projected = k.Room(x.rows, AlignUp<int64_t>(out, 8)).Cols(0, out);
  Gemm(k, x, h.in_proj, projected);
  const Matrix z = k.Room(x.rows, h.width);
  Gemm(k, projected.Cols(3 * h.width, rank), h.f_b_proj, z);
  return {.qkv = projected.Cols(0, 3 * h.width),
          .z = z,
          .beta_logits = projected.Cols(3 * h.width + 2 * rank, h.heads.size()),
          .gate_in = projected.Cols(3 * h.width + rank, rank)};
}

Status KdaAttention::Forward(const StepContext& step, ConstMatrix x, const RowChoice* chosen,
                             Matrix y) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::Workspace::Scope scope(*k.workspace);
  const bool sharded = step.communicator.RowsAreSharded(parallel::BlockKind::kKda);
  PERIGEE_CHECK_MSG(!sharded || held_, "the weights were loaded without those of the state mode");
  const Heads& h = sharded ? *held_ : own_;
  const Rows rows = Project(k, h, x);
  Matrix mixed = k.Room(x.rows, h.width);
  const bool one_row_each = !sharded && step.batch.phase == batch::Phase::kDecode;
  if (one_row_each) {
    Advance(step, h, rows, mixed);
  } else if (sharded) {
    PERIGEE_RETURN_IF_ERROR(MixSegments(step, h, rows, mixed));
  } else {
    Mix(step, h, rows, mixed);
  }

  Matrix gate_in = rows.gate_in;
  if (chosen != nullptr) {
    const Matrix chosen_mixed = k.Room(y.rows, h.width);
    GatherRows(k, mixed, chosen->index, chosen_mixed);
    mixed = chosen_mixed;
  }
  if (!one_row_each) {
    if (chosen != nullptr) {
      gate_in = k.Room(y.rows, options_.gate_rank);
      GatherRows(k, rows.gate_in, chosen->index, gate_in);
    }
    const Matrix output_gate = k.Room(y.rows, h.width);
    Gemm(k, gate_in, h.g_b_proj, output_gate);
    GatedRmsNorm(k, mixed, output_gate, o_norm_, options_.norm_eps, mixed);
  }
  GemmInParts(k, mixed, h.o_proj, h.o_parts, y);
  return Status::Ok();
}

kernels::KdaArgs KdaAttention::ArgsOf(const kernels::KernelContext& k, const Heads& h, ConstMatrix convolved,
                                      const Rows& rows, Matrix out) const {
  // Write strengths stay in fp32: the state sums over the whole sequence.
  const Matrix beta = k.Room(rows.beta_logits.rows, rows.beta_logits.cols, DType::kF32);
  Sigmoid(k, rows.beta_logits, beta);
  return {.num_heads = h.heads.size(),
          .key_dim = options_.head_dim,
          .value_dim = options_.head_dim,
          .q = convolved.Cols(0, h.width),
          .k = convolved.Cols(h.width, h.width),
          .v = convolved.Cols(2 * h.width, h.width),
          .g = {},
          .decay = {rows.z, h.dt_bias, h.neg_exp_a},
          .beta = beta,
          .segments = {},
          .states = {},
          .out = out};
}

void KdaAttention::Mix(const StepContext& step, const Heads& h, const Rows& rows, Matrix out) const {
  const kernels::KernelContext& k = step.kernels;
  const StateView states = step.states.View(options_.state_layer);
  const Matrix convolved = k.Room(rows.qkv.rows, rows.qkv.cols);
  CausalConv1d(k, rows.qkv, {h.conv_taps.data(), options_.conv_width, 3 * h.width}, step.segments.list,
               states, convolved);
  kernels::KdaArgs args = ArgsOf(k, h, convolved, rows, out);
  args.segments = step.segments.list;
  args.states = states;
  KdaPrefill(k, args);
}

void KdaAttention::Advance(const StepContext& step, const Heads& h, const Rows& rows, Matrix out) const {
  const kernels::KernelContext& k = step.kernels;
  const Matrix output_gate = k.Room(rows.gate_in.rows, h.width);
  Gemm(k, rows.gate_in, h.g_b_proj, output_gate);
  KdaStep(k, {.num_heads = h.heads.size(),
              .key_dim = options_.head_dim,
              .value_dim = options_.head_dim,
              .qkv = rows.qkv,
              .taps = {h.conv_taps.data(), options_.conv_width, 3 * h.width},
              .decay = {rows.z, h.dt_bias, h.neg_exp_a},
              .beta_logits = rows.beta_logits,
              .output_gate = output_gate,
              .norm_weight = o_norm_,
              .norm_eps = options_.norm_eps,
              .segments = step.segments.list,
              .states = step.states.View(options_.state_layer),
              .out = out});
}

Matrix KdaAttention::ConvolvePieces(const StepContext& step, const Heads& h, ConstMatrix qkv,
                                    const parallel::HaloExchange& halo) const {
  const kernels::KernelContext& k = step.kernels;
  const parallel::SegmentPlan& plan = step.layout.segments;
  const std::vector<size_t>& own = plan.ranks[static_cast<size_t>(plan.rank)];
  // Tails by place of the piece among this rank's.
  const int64_t tail_floats = (options_.conv_width - 1) * qkv.cols;
  const StateView tails{.conv = k.workspace->Floats(static_cast<int64_t>(own.size()) * tail_floats),
                        .conv_stride = tail_floats};
  std::vector<Segment> segments;
  for (const size_t i : own) {
    const parallel::Piece& piece = plan.pieces[i];
    const auto place = static_cast<int32_t>(segments.size());
    halo.TailBefore(piece.span, piece.begin, tails.Conv(place));
    segments.push_back({.q_begin = piece.local_row, .q_len = piece.len, .slot = place});
  }
  const Matrix convolved = k.Room(qkv.rows, qkv.cols);
  CausalConv1d(k, qkv, {h.conv_taps.data(), options_.conv_width, qkv.cols}, segments, tails, convolved);
  return convolved;
}

// The rank's share of the states behind the rows: conv tails are at hand, recurrent states become wishes.
void KdaAttention::KeepShares(const StepContext& step, const Heads& h, const parallel::HaloExchange& halo,
                              std::vector<parallel::SegmentScan::Wish>& wishes) const {
  const parallel::SegmentPlan& plan = step.layout.segments;
  const StateView states = step.states.View(options_.state_layer);
  const int64_t begin = own_.heads.begin - h.heads.begin;
  const auto keep = [&](int32_t span, int64_t row, int32_t slot) {
    wishes.push_back({span, row, begin, begin + own_.heads.size(), states.Recurrent(slot)});
    halo.ShareOfTailBefore(span, row, states.Conv(slot));
  };
  for (const batch::SeqSpan& span : plan.spans) {
    keep(span.seq, span.q_len, step.batch.state_slots[static_cast<size_t>(span.seq)]);
  }
  for (const batch::StateSnapshot& snapshot : step.batch.snapshots) {
    keep(snapshot.seq, snapshot.tokens - plan.spans[static_cast<size_t>(snapshot.seq)].prefix(),
         snapshot.slot);
  }
}

Status KdaAttention::MixSegments(const StepContext& step, const Heads& h, const Rows& rows,
                                 Matrix out) const {
  const kernels::KernelContext& k = step.kernels;
  const parallel::ParallelContext& parallel = step.communicator.parallel();
  const parallel::SegmentPlan& plan = step.layout.segments;
  const StateView states = step.states.View(options_.state_layer);
  std::vector<parallel::EntryShare> entries;
  for (const int32_t slot : step.batch.state_slots) {
    entries.push_back({states.Conv(slot), states.Recurrent(slot)});
  }
  const int64_t state_share = own_.width * options_.head_dim;
  const parallel::HaloShape halo_shape{options_.conv_width - 1, 3, h.width, state_share};
  PERIGEE_ASSIGN_OR_RETURN(
      const parallel::HaloExchange halo,
      parallel::HaloExchange::Run(parallel, plan, k, halo_shape, rows.qkv.As<float>(), entries));
  // Three kernels read the decays.
  kernels::KdaArgs args = WithGates(k, ArgsOf(k, h, ConvolvePieces(step, h, rows.qkv, halo), rows, out));

  // A span's first piece runs at once, the others when the states before them are known.
  parallel::SegmentScan scan(parallel, plan, k, {args.num_heads, args.key_dim, args.value_dim});
  const int64_t state_floats = h.width * args.value_dim;
  // The state that each piece begins with and then the one it leaves, by its place among this rank's.
  const StateView piece_states{
      .recurrent = k.workspace->Floats(static_cast<int64_t>(scan.own().size()) * state_floats),
      .recurrent_stride = state_floats};
  std::vector<Segment> first, later;
  std::vector<kernels::KdaSummarySegment> summaries;
  std::vector<parallel::SegmentScan::Wish> wishes;
  for (size_t i = 0; i < scan.own().size(); ++i) {
    const parallel::SegmentScan::Own& own = scan.own()[i];
    const parallel::Piece& piece = own.piece;
    const Segment segment{.q_begin = piece.local_row, .q_len = piece.len, .slot = static_cast<int32_t>(i)};
    if (piece.begin == 0) {
      halo.EntryState(piece.span, piece_states.Recurrent(segment.slot));
      first.push_back(segment);
      continue;
    }
    summaries.push_back({piece.local_row, piece.len, own.transition, own.state});
    later.push_back(segment);
    wishes.push_back({piece.span, piece.begin, 0, args.num_heads, piece_states.Recurrent(segment.slot)});
  }
  args.states = piece_states;
  args.segments = first;
  KdaPrefill(k, args);
  for (const Segment& s : first) {
    std::copy_n(piece_states.Recurrent(s.slot), state_floats, scan.own()[static_cast<size_t>(s.slot)].state);
  }
  KdaSummary(k, {args.num_heads, args.key_dim, args.value_dim, args.k.As<float>(), args.v.As<float>(),
                 args.g.As<float>(), args.beta.As<float>(), summaries});
  PERIGEE_RETURN_IF_ERROR(scan.Gather());

  KeepShares(step, h, halo, wishes);
  scan.Fold(std::move(wishes));
  args.segments = later;
  KdaPrefill(k, args);
  return Status::Ok();
}

}  // namespace perigee::layers
