// Routing and experts of the CUDA backend against the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/moe/moe.h"
#include "kernels/twin.h"
#include "tensor/parameter.h"
#include "testing/stored_weights.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

struct MoeCase {
  int64_t rows, experts, top_k, hidden, width;
  int64_t shared_width;
  int64_t first = 0, held = 0;  // experts of this rank; held 0: all
  int64_t valid = -1;           // rows from there on are padding
};

class CudaMoeTest : public CudaKernelTest {
 protected:
  void AddMlp(int64_t hidden, int64_t width, MlpWeights* host, MlpWeights* device) {
    const StoredWeights gate_up(random_, DType::kBF16, 2 * width, hidden, 0.1);
    const StoredWeights down(random_, DType::kBF16, hidden, width, 0.1);
    *host = {PackedWeight::Pack(gate_up.matrix()), PackedWeight::Pack(down.matrix()), SumPartBounds(width)};
    *device = {PackedWeight::Pack(gate_up.matrix(), Device::kCuda),
               PackedWeight::Pack(down.matrix(), Device::kCuda), SumPartBounds(width)};
  }

  template <typename T>
  std::vector<T> OnHost(std::span<T> device) {
    std::vector<T> host(device.size());
    device_memory::CopyToHost(host.data(), device.data(), host.size() * sizeof(T), gpu().stream);
    device_memory::Wait(gpu().stream);
    return host;
  }

  // The choice of the valid rows is the CPU's, of the others nothing; returns it as the CPU's mixture reads
  // it: padding rows choose what another rank holds.
  void ExpectSameChoice(const MoeCase& c, const Routing& on_cpu, const Routing& on_gpu) {
    const std::vector<int32_t> experts = OnHost(on_gpu.experts);
    const std::vector<float> weights = OnHost(on_gpu.weights);
    for (int64_t i = 0; i < c.rows * c.top_k; ++i) {
      const auto at = static_cast<size_t>(i);
      if (c.valid >= 0 && i / c.top_k >= c.valid) {
        ASSERT_EQ(experts[at], -1);
        ASSERT_EQ(weights[at], 0.0f);
        on_cpu.experts[at] = -1;
        on_cpu.weights[at] = 0;
      }
    }
    EXPECT_EQ(experts, std::vector<int32_t>(on_cpu.experts.begin(), on_cpu.experts.end()));
    EXPECT_TRUE(Near(weights, on_cpu.weights, kFloat));
  }

  void Run(const MoeCase& c) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.experts << " experts, " << c.hidden << " x "
                                      << c.width << ", shared " << c.shared_width);
    MoeWeights host, device;
    host.first_expert = device.first_expert = c.first;
    const int64_t held = c.held == 0 ? c.experts : c.held;
    for (int64_t e = 0; e < held; ++e)
      AddMlp(c.hidden, c.width, &host.experts.emplace_back(), &device.experts.emplace_back());
    if (c.shared_width > 0) AddMlp(c.hidden, c.shared_width, &host.shared, &device.shared);
    ListExperts(device);
    const std::vector<float> bias = random_.Normals(c.experts, 0.1);
    const Parameter bias_on_device(bias, Device::kCuda);
    Twin logits(c.rows, c.experts, random_.Normals(c.rows * c.experts), DType::kF32);
    Twin x = Rows(c.rows, c.hidden), y(c.rows, c.hidden);
    const RouterOptions options{c.top_k, true, 2.446f};
    KernelContext k = gpu();
    const auto valid_rows = static_cast<int32_t>(c.valid);
    const Buffer valid = Buffer::Of(&valid_rows, sizeof valid_rows, Device::kCuda);
    if (c.valid >= 0) k.valid_rows = valid.As<int32_t>();
    const Workspace::Scope scope(*k.workspace);
    const Routing on_cpu = RouteTopK(cpu(), logits.host(), bias, options);
    const Routing on_gpu = RouteTopK(k, logits.device(), bias_on_device, options);
    ExpectSameChoice(c, on_cpu, on_gpu);
    MoeForward(cpu(), host, on_cpu, x.host(), y.host());
    MoeForward(k, device, on_gpu, x.device(), y.device());
    ExpectNear(y, kRoundedOften);
  }
};

TEST_F(CudaMoeTest, EveryNumberOfRows) {
  // Streamed up to 8 rows, in tiles beyond.
  for (const int64_t rows : {1, 2, 8, 9, 32, 64, 65, 300}) Run({rows, 64, 8, 192, 64, 64});
}

TEST_F(CudaMoeTest, SharedExpertOfAnotherWidthOrNone) {
  for (const int64_t shared : {0, 32, 128}) {
    for (const int64_t rows : {1, 7, 40}) Run({rows, 16, 4, 128, 64, shared});
  }
}

TEST_F(CudaMoeTest, ExpertsOfOneRank) {
  for (const int64_t rows : {1, 8, 65}) Run({rows, 32, 4, 128, 64, 64, 8, 8});
}

TEST_F(CudaMoeTest, PaddingRowsReadNoExpert) {
  for (const auto& [rows, valid] : {std::pair{1, 0}, {8, 5}, {64, 33}, {64, 0}}) {
    Run({.rows = rows,
         .experts = 16,
         .top_k = 4,
         .hidden = 128,
         .width = 64,
         .shared_width = 64,
         .valid = valid});
  }
}

TEST_F(CudaMoeTest, ShapesOfThePlainForm) {
  Run({200, 16, 4, 52, 13, 13});
  Run({7, 40, 33, 64, 24, 24});
  Run({.rows = 9, .experts = 40, .top_k = 34, .hidden = 20, .width = 5, .shared_width = 7, .valid = 4});
}

TEST_F(CudaMoeTest, ManyExperts) {
  Run({3, 1500, 8, 16, 8, 8});
}

}  // namespace
}  // namespace perigee::kernels
