#include "tensor/memory_ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/parameter.h"

namespace perigee {
namespace {

TEST(MemoryLedger, CountsByKindWhatIsHeldAndTheMostThatWas) {
  MemoryLedger ledger;
  Buffer kept(100, Device::kCpu, {&ledger, MemoryKind::kLatents});
  { const Buffer gone(1000, Device::kCpu, {&ledger, MemoryKind::kLatents}); }
  const Buffer other(7, Device::kCpu, {&ledger, MemoryKind::kStates});
  const Buffer uncounted(5000);
  EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kLatents), 100u);
  EXPECT_EQ(BytesOf(ledger.peak(), MemoryKind::kLatents), 1100u);
  EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kStates), 7u);
  EXPECT_EQ(TotalBytes(ledger.held()), 107u);

  Buffer moved = std::move(kept);
  EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kLatents), 100u);
  moved = Buffer(30, Device::kCpu, {&ledger, MemoryKind::kSnapshots});
  EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kLatents), 0u);
  EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kSnapshots), 30u);
}

TEST(MemoryLedger, ParametersCountToo) {
  MemoryLedger ledger;
  {
    const std::vector<float> values(10, 1.0f);
    Parameter p(values, Device::kCpu, {&ledger, MemoryKind::kWeights});
    Parameter moved = std::move(p);
    EXPECT_EQ(moved.size(), 10u);
    EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kWeights), 40u);
  }
  EXPECT_EQ(TotalBytes(ledger.held()), 0u);
  EXPECT_EQ(BytesOf(ledger.peak(), MemoryKind::kWeights), 40u);
}

TEST(MemoryLedger, ThreadsAddUp) {
  MemoryLedger ledger;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) ledger.Add(MemoryKind::kWeights, 3);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(BytesOf(ledger.held(), MemoryKind::kWeights), 120'000u);
  EXPECT_EQ(BytesOf(ledger.peak(), MemoryKind::kWeights), 120'000u);
}

}  // namespace
}  // namespace perigee
