#include "comm/factory.h"

#include <gtest/gtest.h>

#include "comm/transports.h"
#include "comm/tree_sum.h"

namespace perigee::comm {
namespace {

TEST(Factory, RanksComeInOrder) {
  for (const test::WorldCase& world : test::AllWorlds()) {
    auto ranks = MakeInProcessWorld(world.transport, world.size);
    ASSERT_TRUE(ranks.ok()) << ranks.status().message();
    ASSERT_EQ(ranks->size(), static_cast<size_t>(world.size));
    for (int r = 0; r < world.size; ++r) {
      EXPECT_EQ((*ranks)[static_cast<size_t>(r)]->rank(), r);
      EXPECT_EQ((*ranks)[static_cast<size_t>(r)]->size(), world.size);
    }
  }
}

TEST(Factory, ErrorsSayWhatIsAccepted) {
  EXPECT_EQ(MakeInProcessWorld("pigeon", 2).status().message(),
            "unknown transport \"pigeon\"; accepted: local, thread");
  EXPECT_EQ(MakeInProcessWorld("local", 2).status().message(), "transport local: 2 ranks; accepted: 1");
  EXPECT_EQ(MakeInProcessWorld("thread", 0).status().message(),
            "transport thread: 0 ranks; accepted: 1 and more");
  EXPECT_EQ(MakeInProcessWorld("thread", -1).status().code(), StatusCode::kInvalidArgument);
}

// More operands than one loop takes, through every remainder.
TEST(TreeSum, FollowsTheLevelsForAnyNumberOfOperands) {
  constexpr int64_t kElements = 19;
  for (int operands = 1; operands <= 35; ++operands) {
    std::vector<std::vector<float>> data;
    std::vector<const float*> pointers;
    for (int r = 0; r < operands; ++r) data.push_back(test::RankData(5, r, kElements));
    for (const std::vector<float>& d : data) pointers.push_back(d.data());
    std::vector<float> out(kElements, -1);
    TreeSum(pointers, kElements, out.data());
    EXPECT_EQ(out, test::ExpectedSums(5, operands, kElements)) << operands << " operands";
  }
}

}  // namespace
}  // namespace perigee::comm
