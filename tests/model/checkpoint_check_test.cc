#include "model/checkpoint_check.h"

#include <gtest/gtest.h>

#include "model/kimi_linear/config.h"

namespace perigee::model {
namespace {

const std::string kBundled = PERIGEE_MODELS "/tiny-kimi-linear";

TEST(CheckCheckpoint, BundledModelHoldsWhatItsConfigNeeds) {
  const StatusOr<KimiLinearConfig> config = ReadKimiLinearConfig(kBundled);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const StatusOr<Checkpoint> checkpoint = Checkpoint::Open(kBundled);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const Status status = CheckCheckpoint(*checkpoint, ExpectedTensors(*config));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(checkpoint->TotalBytes(), 16642304u);
}

}  // namespace
}  // namespace perigee::model
