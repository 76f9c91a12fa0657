#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/math.h"
#include "comm/process_grid.h"
#include "kernels/gemm/gemm.h"

namespace perigee::parallel {

// A run of heads, channels, columns, experts or vocabulary rows.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Which part of the model's weights a rank holds. Everything that is cut over all ranks is cut into `total`
// shares, of which this rank's is `share`; the rank also holds whole shards of shares [first_held, first_held
// + num_held) for attention over its own rows. Layers know this, not ranks.
struct Shard {
  int64_t total = 1;
  int64_t share = 0;
  int64_t first_held = 0;
  int64_t num_held = 1;
  // KDA too is held for the whole shard, besides the share's part (the state mode).
  bool holds_kda = false;
  int64_t expert_groups =
      1;  // experts are cut into this many ranges; within one, their width over total / groups

  Range Of(int64_t size, int64_t s) const {
    return {PartBegin(s, size, total), PartBegin(s + 1, size, total)};
  }
  Range Of(int64_t size) const { return Of(size, share); }
  Range Held(int64_t size) const {
    return {PartBegin(first_held, size, total), PartBegin(first_held + num_held, size, total)};
  }

  // Bounds, relative to the first, of the fixed parts of a sum over `size` that shares [first, first + count)
  // make up. One part where the shares do not divide the parts: such sums depend on the number of ranks.
  std::vector<int64_t> PartBounds(int64_t size, int64_t first, int64_t count) const {
    const int64_t begin = PartBegin(first, size, total);
    if (kernels::kSumParts % total != 0) return {0, PartBegin(first + count, size, total) - begin};
    const int64_t per_share = kernels::kSumParts / total;
    std::vector<int64_t> bounds;
    for (int64_t p = first * per_share; p <= (first + count) * per_share; ++p) {
      bounds.push_back(PartBegin(p, size, kernels::kSumParts) - begin);
    }
    return bounds;
  }
  std::vector<int64_t> PartBounds(int64_t size) const { return PartBounds(size, share, 1); }
};

// The part that a rank of the grid holds.
inline Shard ShardOf(const comm::GridPosition& p) {
  return {.total = p.tp,
          .share = p.share(),
          .first_held = static_cast<int64_t>(p.attn_tp_rank()) * p.attn_cp,
          .num_held = p.attn_cp,
          .expert_groups = p.ep};
}

// Which experts a rank holds, and which columns of the width of each.
struct ExpertShare {
  Range experts;
  Range width;
};
inline ExpertShare ExpertsOf(const Shard& shard, int64_t experts, int64_t width) {
  const int64_t per_group = shard.total / shard.expert_groups;
  const int64_t group = shard.share / per_group, place = shard.share % per_group;
  return {
      {PartBegin(group, experts, shard.expert_groups), PartBegin(group + 1, experts, shard.expert_groups)},
      {PartBegin(place, width, per_group), PartBegin(place + 1, width, per_group)}};
}

}  // namespace perigee::parallel
