#include "cache/cache_budget.h"

#include <gtest/gtest.h>

#include "cache/paged_kv_cache.h"

namespace perigee::cache {
namespace {

TEST(CacheBudgetTest, CostsCountEveryLayer) {
  const CacheCosts costs = ComputeCacheCosts(7, 576, 20, 32 * 128 * 128, 3 * 3 * 4096);
  EXPECT_EQ(costs.per_token, 7u * 576 * 4);
  EXPECT_EQ(costs.per_sequence, 20u * (524288 + 36864) * 4);
}

TEST(CacheBudgetTest, PoolTakesWhatIsLeftBesideTheStates) {
  const CacheCosts costs{.per_token = 100, .per_sequence = 1000};
  // 10 sequences cost 10,000 bytes; 64,000 more hold exactly 10 blocks.
  EXPECT_EQ(PoolTokens(costs, 74000, 10, 128, 128), 640);
  EXPECT_EQ(PoolTokens(costs, 73999, 10, 128, 128), 576);
}

TEST(CacheBudgetTest, NeverMoreThanAllRequestsCanUse) {
  EXPECT_EQ(PoolTokens({.per_token = 4, .per_sequence = 0}, uint64_t{1} << 50, 3, 100, 100), 3 * 128);
}

TEST(CacheBudgetTest, AlwaysHoldsTheLeastThatIsWanted) {
  const CacheCosts costs{.per_token = 1 << 20, .per_sequence = 1 << 20};
  EXPECT_EQ(PoolTokens(costs, 0, 64, 1000, 1000), 1024);
  EXPECT_EQ(PoolTokens(costs, 0, 64, 1000, 65), 128);
}

TEST(CacheBudgetTest, LongContextsTimesManySequencesStayInRange) {
  const int64_t tokens = PoolTokens({.per_token = 0, .per_sequence = 0}, 0, int64_t{1} << 40, 1 << 20, 1);
  EXPECT_EQ(tokens, int64_t{2147483647} * kBlockTokens);
}

}  // namespace
}  // namespace perigee::cache
