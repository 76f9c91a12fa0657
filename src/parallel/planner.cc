#include "parallel/planner.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kda/kda.h"
#include "parallel/halo_exchange.h"
#include "parallel/segment_scan.h"

namespace perigee::parallel {
namespace {

constexpr double kStateBytes = 4;
constexpr int64_t kConvParts = 3;  // queries, keys and values

double Others(int ranks) {
  return static_cast<double>(ranks - 1) / ranks;
}

ScanShape ScanOf(const ModelShape& m, const RankShape& ranks) {
  return {m.kda_heads * ranks.attn_cp / ranks.tp, m.key_dim, m.value_dim};
}

int64_t TotalRows(std::span<const batch::SeqSpan> spans) {
  int64_t rows = 0;
  for (const batch::SeqSpan& s : spans) rows += s.q_len;
  return rows;
}

// Collects the cost of one mode.
class Cost {
 public:
  Cost(StepMode mode, const ModelShape& model, const Rates& rates, const RankShape& ranks,
       std::span<const batch::SeqSpan> spans)
      : m_(model), rates_(rates), ranks_(ranks), spans_(spans), rows_(static_cast<double>(TotalRows(spans))) {
    cost_.mode = mode;
  }

  ModeCost Run() {
    const LayoutPlan plan = MakeLayoutPlan(cost_.mode, m_.attention, ranks_.tp, ranks_.attn_cp);
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
      const BlockTransitions& block = plan.blocks[b];
      // Only the embedded rows have no branch beside them.
      for (int i = 0; i < (b == 0 ? 1 : 2); ++i) Move(block.stream, m_.hidden);
      Move(block.input, m_.hidden);
      Move(block.output, m_.hidden);
      const bool own_rows = block.input_rows == Sharding::kCp;
      if (block.kind == BlockKind::kMla) Mla(own_rows);
      if (block.kind == BlockKind::kKda) Kda(own_rows);
    }
    return cost_;
  }

 private:
  void Send(const Link& link, double bytes) {
    cost_.link += bytes / link.bytes_per_second;
    cost_.latency += link.seconds_per_call;
  }

  void Move(Transition t, int64_t width) {
    const SentRows sent = SentPerRow(t, ranks_.tp, ranks_.attn_cp);
    const double bytes = rows_ * static_cast<double>(width) * rates_.row_bytes;
    if (sent.tp > 0) Send(rates_.tp, sent.tp * bytes);
    if (sent.cp > 0) Send(rates_.cp, sent.cp * bytes);
    if (sent.attn_tp > 0) Send(rates_.attn_tp, sent.attn_tp * bytes);
  }

  void Compute(double flops) { cost_.compute += flops / rates_.flops_per_second; }

  // Heads that a rank works with on its own rows, or on all.
  double Heads(int64_t heads, bool own_rows) const {
    return static_cast<double>(heads) * (own_rows ? ranks_.attn_cp : 1) / ranks_.tp;
  }

  void Mla(bool own_rows) {
    if (own_rows) Move(Transition::kAllGather, m_.latent);
    double keys = 0;
    for (const batch::SeqSpan& s : spans_) keys += static_cast<double>(s.kv_len);
    Compute(keys * Heads(m_.mla_heads, own_rows) * static_cast<double>(m_.expand_flops));
    Compute(2 * static_cast<double>(m_.hidden * m_.latent) * rows_ / (own_rows ? ranks_.attn_cp : 1));
  }

  void Kda(bool own_rows) {
    const double heads = Heads(m_.kda_heads, own_rows);
    const KdaFlops kda = FlopsOfKda(m_.key_dim, m_.value_dim);
    const auto gates = static_cast<double>(2 * m_.hidden * 2 * m_.gate_rank);
    if (!own_rows) {
      Compute(rows_ * (heads * kda.forward + gates));
      return;
    }
    // Two all-gathers: rows before segments with what the pools hold, and what segments do to the state.
    const StateElements elements = CountStateElements(m_, ranks_, spans_);
    Send(rates_.cp, static_cast<double>(elements.rows) * rates_.row_bytes);
    Send(rates_.cp, static_cast<double>(elements.states) * kStateBytes);
    const SegmentPlan plan = MakeSegmentPlan(spans_, ranks_.strategy(spans_, ranks_.attn_cp), {}, 0);
    double most = 0;
    for (const std::vector<size_t>& own : plan.ranks) {
      double flops = 0;
      for (const size_t i : own) {
        const Piece& piece = plan.pieces[i];
        const auto rows = static_cast<double>(piece.len);
        flops += rows * (heads * kda.forward + gates);
        if (piece.begin > 0) flops += rows * heads * kda.summary;
      }
      most = std::max(most, flops);
    }
    const auto folds = static_cast<double>(plan.pieces.size() - plan.spans.size());
    Compute(most + folds * heads * kda.fold);
  }

  const ModelShape& m_;
  const Rates& rates_;
  const RankShape& ranks_;
  const std::span<const batch::SeqSpan> spans_;
  const double rows_;
  ModeCost cost_;
};

batch::SeqSpan Prompt(int64_t rows) {
  return {.q_len = rows, .kv_len = rows};
}

}  // namespace

SentRows SentPerRow(Transition t, int tp, int attn_cp) {
  // Summed over the ranks with the same rows, a C-th of the step's.
  const double same_rows = 2 * Others(tp / attn_cp) / attn_cp;
  switch (t) {
    case Transition::kNone:
    case Transition::kSlice:
      return {};
    case Transition::kAllGather:
      return {.cp = Others(attn_cp)};
    case Transition::kAllReduceTp:
      return {.tp = 2 * Others(tp)};
    case Transition::kAllReduceAttnTp:
      return {.attn_tp = same_rows};
    case Transition::kReduceScatter:
      return {.cp = Others(attn_cp), .attn_tp = same_rows};
  }
  PERIGEE_CHECK(false);
  return {};
}

KdaFlops FlopsOfKda(int64_t key_dim, int64_t value_dim) {
  const auto k = static_cast<double>(key_dim), v = static_cast<double>(value_dim);
  const auto chunk = static_cast<double>(kernels::kKdaChunk);
  // Three products with the state, five inside the chunk, and the solution of a triangular system; a summary
  // has two with a wider state, and no queries.
  return {.forward = 6 * k * v + 6 * chunk * k + 4 * chunk * v + 2 * chunk * chunk / 3,
          .summary = 4 * k * (k + v) + 3 * chunk * k + chunk * (k + v),
          .fold = 2 * k * k * v};
}

StateElements CountStateElements(const ModelShape& model, const RankShape& ranks,
                                 std::span<const batch::SeqSpan> spans) {
  const SegmentPlan plan = MakeSegmentPlan(spans, ranks.strategy(spans, ranks.attn_cp), {}, 0);
  const ScanShape scan = ScanOf(model, ranks);
  const HaloShape halo{model.conv_history, kConvParts, scan.num_heads * model.key_dim,
                       scan.StateFloats() / ranks.attn_cp};
  int64_t prefixes = 0;
  for (const batch::SeqSpan& s : spans) prefixes += s.prefix() > 0 ? 1 : 0;
  const int64_t entries = prefixes * (halo.history * halo.parts * (halo.width / ranks.attn_cp) + halo.state);
  StateElements most;
  for (int rank = 0; rank < ranks.attn_cp; ++rank) {
    const int64_t others = ranks.attn_cp - 1;
    const int64_t rows = HaloExchange::SentBy(plan, halo, rank) - entries;
    const StateElements sent{others * rows, others * (entries + SegmentScan::SentBy(plan, scan, rank))};
    if (sent.total() > most.total()) most = sent;
  }
  return most;
}

ModeCost CostOf(StepMode mode, const ModelShape& model, const Rates& rates, const RankShape& ranks,
                std::span<const batch::SeqSpan> spans) {
  return Cost(mode, model, rates, ranks, spans).Run();
}

ModeCost ChooseMode(const ModelShape& model, const Rates& rates, const RankShape& ranks,
                    std::span<const batch::SeqSpan> spans) {
  ModeCost best = CostOf(kPlannedModes[0], model, rates, ranks, spans);
  for (const StepMode mode : std::span(kPlannedModes).subspan(1)) {
    const ModeCost cost = CostOf(mode, model, rates, ranks, spans);
    if (cost.total() < best.total()) best = cost;
  }
  return best;
}

std::vector<ModeRange> CheapestModes(const ModelShape& model, const Rates& rates, const RankShape& ranks,
                                     int64_t max_rows) {
  const auto cheapest = [&](int64_t rows) {
    const batch::SeqSpan prompt = Prompt(rows);
    return ChooseMode(model, rates, ranks, {&prompt, 1}).mode;
  };
  std::vector<ModeRange> ranges = {{1, cheapest(1)}};
  for (int64_t low = 1; low < max_rows;) {
    const int64_t next = std::min(2 * low, max_rows);
    const StepMode mode = cheapest(next);
    if (mode != ranges.back().mode) {
      int64_t last = low, first = next;  // the last length of the old choice, the first of another
      while (first - last > 1) {
        const int64_t middle = last + (first - last) / 2;
        (cheapest(middle) == ranges.back().mode ? last : first) = middle;
      }
      ranges.push_back({first, cheapest(first)});
      low = first;
    } else {
      low = next;
    }
  }
  return ranges;
}

int64_t StateBreakEven(const ModelShape& model, const RankShape& ranks, double row_bytes) {
  const double head = 2 * Others(ranks.attn_cp) * static_cast<double>(model.hidden) * row_bytes;
  const auto state_is_cheaper = [&](int64_t rows) {
    const batch::SeqSpan prompt = Prompt(rows);
    const StateElements sent = CountStateElements(model, ranks, {&prompt, 1});
    return static_cast<double>(sent.rows) * row_bytes + static_cast<double>(sent.states) * kStateBytes <
           static_cast<double>(rows) * head;
  };
  // Long enough that every segment is longer than the history; from there on what is sent does not grow.
  int64_t last = 2 * ranks.attn_cp * (model.conv_history + 1), first = 2 * last;
  while (!state_is_cheaper(first)) first *= 2;
  while (first - last > 1) {
    const int64_t middle = last + (first - last) / 2;
    (state_is_cheaper(middle) ? first : last) = middle;
  }
  return first;
}

}  // namespace perigee::parallel
