#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "batch/seq_span.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/layout_plan.h"
#include "parallel/segment_plan.h"
#include "parallel/token_layout.h"

namespace perigee::parallel {

// What a collective of a group costs: a fixed time, and the elements that a rank sends over its rate.
struct Link {
  double bytes_per_second = 0;
  double seconds_per_call = 0;
};

// Rates of the machine, as measured or as given.
struct Rates {
  Link tp;                      // among all ranks
  Link cp;                      // in a CP group
  Link attn_tp;                 // among the ranks that hold the same rows
  double flops_per_second = 0;  // of a rank
  double row_bytes = 4;         // of an element of a row; states and their summaries have 4
};

// What the planner has to know of a model.
struct ModelShape {
  std::vector<BlockKind> attention;  // of each layer
  int64_t hidden = 0;
  int64_t kda_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_history = 0;  // rows before a row that its convolution sees
  int64_t gate_rank = 0;
  int64_t mla_heads = 0;
  int64_t latent = 0;        // floats of a token's record
  int64_t expand_flops = 0;  // of a key and head, when latents become keys and values
};

// The ranks and how they split rows.
struct RankShape {
  int tp = 1;
  int attn_cp = 1;
  CpStrategy strategy = Zigzag;
};

// Parts of a row of `hidden` elements that a rank sends for each row of the step, as the communicators count.
struct SentRows {
  double tp = 0;
  double cp = 0;
  double attn_tp = 0;

  double total() const { return tp + cp + attn_tp; }
};
SentRows SentPerRow(Transition t, int tp, int attn_cp);

// What the ranks of a CP group send for KDA in the state mode, in one layer of one step: elements of the rank
// that sends most. It does not grow with the rows.
struct StateElements {
  int64_t rows = 0;    // pre-convolution rows before segments
  int64_t states = 0;  // entry states and conv tails, states, M and B

  int64_t total() const { return rows + states; }
};
StateElements CountStateElements(const ModelShape& model, const RankShape& ranks,
                                 std::span<const batch::SeqSpan> spans);

// Operations of KDA's chunk forms for a head, full squares (specification 3.4); a multiply and an add are
// two.
struct KdaFlops {
  double forward = 0;  // of a row
  double summary = 0;  // of a row: M and B
  double fold = 0;     // of a summary that is applied to a state
};
KdaFlops FlopsOfKda(int64_t key_dim, int64_t value_dim);

// Seconds of a prefill step in one mode, as far as modes differ: products that every mode spreads evenly (the
// projections, attention's pairs, the feed-forward) are left out.
struct ModeCost {
  StepMode mode = StepMode::kHead;
  double link = 0;     // elements over the rates of their links
  double latency = 0;  // of the collectives
  double compute = 0;  // of the rank with the most of it

  double total() const { return link + latency + compute; }
};
ModeCost CostOf(StepMode mode, const ModelShape& model, const Rates& rates, const RankShape& ranks,
                std::span<const batch::SeqSpan> spans);

// The modes that `auto` chooses among, in the order in which equal costs are decided.
inline constexpr StepMode kPlannedModes[] = {StepMode::kHead, StepMode::kTp, StepMode::kState};
// The cheapest of them.
ModeCost ChooseMode(const ModelShape& model, const Rates& rates, const RankShape& ranks,
                    std::span<const batch::SeqSpan> spans);

// From `rows` rows on, up to the next entry, `mode` is the cheapest for a prompt that runs alone in one step.
struct ModeRange {
  int64_t rows = 1;
  StepMode mode = StepMode::kHead;

  friend bool operator==(const ModeRange&, const ModeRange&) = default;
};
// For prompts of 1 to max_rows rows: lengths between powers of two are searched by halving.
std::vector<ModeRange> CheapestModes(const ModelShape& model, const Rates& rates, const RankShape& ranks,
                                     int64_t max_rows);
// Rows of a prompt from which on `state` sends fewer bytes for KDA than `head`, on equal links.
int64_t StateBreakEven(const ModelShape& model, const RankShape& ranks, double row_bytes);

}  // namespace perigee::parallel
