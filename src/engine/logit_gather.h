#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/context.h"
#include "kernels/sampling/sampling.h"
#include "model/causal_lm.h"
#include "tensor/matrix.h"

namespace perigee::engine {

// What is wanted of one row's logits.
struct LogitWish {
  std::optional<int32_t> target;  // a token whose logit is wanted
  bool all = false;               // the whole row is wanted (it is sampled)
};

// One row's logits as rank 0 sees them.
struct RowLogits {
  float lse = 0;     // log-sum-exp over the whole vocabulary
  float target = 0;  // logit of the wished target
  std::span<const float>
      logits;  // [vocab_size] if the row was wished whole; in the context's workspace, or in `local`
};

// Brings the rows' logits together from the ranks' parts of the vocabulary. Every rank sends its sum of
// exponentials and target logits, and full logits of the rows that are wished whole. Rows come back on the
// group's rank 0 only, elsewhere the result is empty. group: all ranks in share order, or null for one rank,
// whose rows are not copied. local: [rows, share.size()].
// The logits' own room aside, takes what TallyLogits says from the context's workspace.
StatusOr<std::vector<RowLogits>> GatherLogits(const kernels::KernelContext& context,
                                              comm::Communicator* group, const model::VocabularyShare& share,
                                              int64_t vocab_size, ConstMatrixF local,
                                              std::span<const LogitWish> wishes);

// Rows whose logits are held at one time: a prompt's log-probabilities would take rows x vocabulary floats.
inline constexpr int64_t kLogitRows = 64;

// Room of the logits of up to `rows` rows of which any may be wished whole, and of their gather, on the rank
// that has `share` columns of the vocabulary. ranks: of the group; first: whether this is its rank 0.
void TallyLogits(kernels::WorkspaceTally& tally, int64_t rows, int64_t hidden, int64_t share,
                 int64_t vocab_size, int ranks, bool first);

}  // namespace perigee::engine
