#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"

namespace perigee::cache {
namespace {

TEST(PagedKvCacheTest, EveryRecordHasItsOwnPlace) {
  constexpr int64_t kLayers = 2, kBlocks = 3, kWidth = 5;
  const PagedKvCache pool(kLayers, kBlocks, kWidth);
  EXPECT_EQ(pool.Bytes(), static_cast<uint64_t>(kLayers * kBlocks * kBlockTokens * kWidth) * 4);
  // A table that visits the blocks out of order.
  const std::vector<int32_t> table = {2, 0, 1};
  float value = 1;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t t = 0; t < kBlocks * kBlockTokens; ++t) {
      float* record = pool.View(layer).Record(table, t);
      for (int64_t i = 0; i < kWidth; ++i) {
        ASSERT_EQ(record[i], 0.0f) << "written before";
        record[i] = value++;
      }
    }
  }
  value = 1;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t t = 0; t < kBlocks * kBlockTokens; ++t) {
      for (int64_t i = 0; i < kWidth; ++i) ASSERT_EQ(pool.View(layer).Record(table, t)[i], value++);
    }
  }
}

TEST(RecurrentStatePoolTest, ZeroClearsOneSlotOfEveryLayerAndNothingElse) {
  constexpr int64_t kLayers = 3, kSlots = 4, kRecurrent = 6, kConv = 5;
  RecurrentStatePool pool(kLayers, kSlots, kRecurrent, kConv);
  EXPECT_EQ(pool.Bytes(), static_cast<uint64_t>(kLayers * kSlots * (kRecurrent + kConv)) * 4);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const StateView view = pool.View(layer);
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      for (int64_t i = 0; i < kRecurrent; ++i) {
        ASSERT_EQ(view.Recurrent(slot)[i], 0.0f) << "slots overlap";
        view.Recurrent(slot)[i] = 1.0f;
      }
      for (int64_t i = 0; i < kConv; ++i) {
        ASSERT_EQ(view.Conv(slot)[i], 0.0f) << "slots overlap";
        view.Conv(slot)[i] = 1.0f;
      }
    }
  }
  pool.Zero(2);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const StateView view = pool.View(layer);
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const float expected = slot == 2 ? 0.0f : 1.0f;
      for (int64_t i = 0; i < kRecurrent; ++i) ASSERT_EQ(view.Recurrent(slot)[i], expected);
      for (int64_t i = 0; i < kConv; ++i) ASSERT_EQ(view.Conv(slot)[i], expected);
    }
  }
}

}  // namespace
}  // namespace perigee::cache
