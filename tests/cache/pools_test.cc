#include <gtest/gtest.h>

#include <cmath>
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

TEST(RecurrentStatePoolTest, CopyMakesOneSlotEqualToAnotherAndTouchesNoOther) {
  constexpr int64_t kLayers = 2, kSlots = 3, kRecurrent = 6, kConv = 5;
  RecurrentStatePool pool(kLayers, kSlots, kRecurrent, kConv);
  const auto value = [](int64_t layer, int64_t slot, int64_t i) {
    return static_cast<float>(100 * layer + 10 * slot + i);
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const StateView view = pool.View(layer);
      for (int64_t i = 0; i < kRecurrent; ++i) view.Recurrent(slot)[i] = value(layer, slot, i);
      for (int64_t i = 0; i < kConv; ++i) static_cast<float*>(view.Conv(slot))[i] = -value(layer, slot, i);
    }
  }
  pool.Copy(2, 0);
  pool.Poison(2);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const StateView view = pool.View(layer);
    for (int64_t i = 0; i < kRecurrent; ++i) {
      EXPECT_EQ(view.Recurrent(0)[i], value(layer, 2, i));
      EXPECT_EQ(view.Recurrent(1)[i], value(layer, 1, i));
      EXPECT_TRUE(std::isnan(view.Recurrent(2)[i]));
    }
    for (int64_t i = 0; i < kConv; ++i) {
      EXPECT_EQ(static_cast<float*>(view.Conv(0))[i], -value(layer, 2, i));
      EXPECT_EQ(static_cast<float*>(view.Conv(1))[i], -value(layer, 1, i));
      EXPECT_TRUE(std::isnan(static_cast<float*>(view.Conv(2))[i]));
    }
  }
}

TEST(PagedKvCacheTest, PoisonFillsOneBlockOfEveryLayer) {
  PagedKvCache pool(2, 3, 5);
  pool.Poison(1);
  const std::vector<int32_t> table = {0, 1, 2};
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t t = 0; t < 3 * kBlockTokens; ++t) {
      const float* record = static_cast<const float*>(pool.View(layer).Record(table, t));
      for (int64_t i = 0; i < 5; ++i) ASSERT_EQ(std::isnan(record[i]), t / kBlockTokens == 1);
    }
  }
}

}  // namespace
}  // namespace perigee::cache
