#include "cache/cache_budget.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/math.h"
#include "cache/paged_kv_cache.h"

namespace perigee::cache {
namespace {

// Block ids are 32 bits wide.
constexpr int64_t kMaxPoolTokens = int64_t{std::numeric_limits<int32_t>::max()} * kBlockTokens;

}  // namespace

CacheCosts ComputeCacheCosts(int64_t kv_layers, int64_t kv_width, int64_t state_layers,
                             int64_t recurrent_floats, int64_t conv_floats, DType cached) {
  const int64_t state_bytes = recurrent_floats * DTypeBytes(DType::kF32) + conv_floats * DTypeBytes(cached);
  return {.per_token = static_cast<uint64_t>(kv_layers * kv_width * DTypeBytes(cached)),
          .per_sequence = static_cast<uint64_t>(state_layers * state_bytes)};
}

int64_t PoolTokens(const CacheCosts& costs, uint64_t bytes, int64_t sequences, int64_t context_length,
                   int64_t least) {
  PERIGEE_CHECK(sequences > 0 && context_length > 0 && context_length <= kMaxPoolTokens);
  PERIGEE_CHECK(least > 0 && least <= context_length);
  const int64_t one_request = AlignUp(context_length, kBlockTokens);
  const int64_t wanted = sequences <= kMaxPoolTokens / one_request ? one_request * sequences : kMaxPoolTokens;
  const uint64_t states = costs.per_sequence * static_cast<uint64_t>(sequences);
  const uint64_t left = bytes > states ? bytes - states : 0;
  const uint64_t block_bytes = costs.per_token * static_cast<uint64_t>(kBlockTokens);
  if (block_bytes == 0) return wanted;
  const uint64_t blocks =
      std::min<uint64_t>(left / block_bytes, static_cast<uint64_t>(wanted / kBlockTokens));
  return std::max(AlignUp(least, kBlockTokens), static_cast<int64_t>(blocks) * kBlockTokens);
}

}  // namespace perigee::cache
