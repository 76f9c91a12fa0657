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
  float lse = 0;                  // log-sum-exp over the whole vocabulary
  float target = 0;               // logit of the wished target
  std::span<const float> logits;  // [vocab_size] if the row was wished whole; in the context's workspace
};

// Brings the rows' logits together from the ranks' parts of the vocabulary. Every rank sends its sum of
// exponentials and target logits, and full logits of the rows that are wished whole. Rows come back on the
// group's rank 0 only, elsewhere the result is empty. group: all ranks in share order, or null for one rank.
// local: [rows, share.size()].
StatusOr<std::vector<RowLogits>> GatherLogits(const kernels::KernelContext& context,
                                              comm::Communicator* group, const model::VocabularyShare& share,
                                              int64_t vocab_size, ConstMatrixF local,
                                              std::span<const LogitWish> wishes);

}  // namespace perigee::engine
