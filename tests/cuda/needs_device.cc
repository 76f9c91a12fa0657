#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace perigee::test {
namespace {

// Skips every test of a program where no CUDA device answers.
class NeedsDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
}  // namespace perigee::test
