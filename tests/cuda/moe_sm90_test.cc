#include "kernels/moe/moe_sm90.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "ref/moe_ref.h"
#include "testing/compare.h"
#include "testing/device_array.h"
#include "testing/random.h"

namespace perigee::test {
namespace {

using Bf16 = __nv_bfloat16;
using kernels::cuda::MoeForward;
using kernels::cuda::MoeForwardArgs;
using kernels::cuda::MoeRoute;
using kernels::cuda::MoeRouteArgs;
using kernels::cuda::MoeShape;
using kernels::cuda::MoeTensorMaps;
using kernels::cuda::MoeWorkspaceBytes;

void Synchronise() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
}

struct Routed {
  std::vector<int32_t> chosen;
  std::vector<float> weights;
};

Routed RouteOnDevice(const std::vector<float>& logits, const std::vector<float>& bias, int64_t rows,
                     int top_k, float factor, int valid_rows = -1) {
  const auto experts = static_cast<int>(bias.size());
  const DeviceArray<float> device_logits(logits), device_bias(bias);
  const DeviceArray<int32_t> chosen(rows * top_k), valid(std::vector<int32_t>{valid_rows});
  const DeviceArray<float> weights(rows * top_k);
  MoeRouteArgs args;
  args.logits = device_logits.data();
  args.logits_stride = experts;
  args.bias = device_bias.data();
  args.rows = rows;
  args.experts = experts;
  args.top_k = top_k;
  args.scaling_factor = factor;
  args.valid_rows = valid_rows < 0 ? nullptr : valid.data();
  args.chosen = chosen.data();
  args.weights = weights.data();
  EXPECT_EQ(MoeRoute(args, nullptr), cudaSuccess);
  Synchronise();
  return {chosen.Get(), weights.Get()};
}

TEST(MoeRouteSm90, ExampleOfTheSpecification) {
  const Routed r = RouteOnDevice({0, 1, -1, 2, 0.5, -0.5}, {0.3f, -0.2f, 0.6f, -0.3f, 0, 0.1f}, 1, 2, 2.446f);
  EXPECT_EQ(r.chosen, (std::vector<int32_t>{0, 2}));
  EXPECT_NEAR(r.weights[0], 1.590498, 1e-5);
  EXPECT_NEAR(r.weights[1], 0.855502, 1e-5);
}

// Logits far apart or equal, so that rounding decides nothing and ties are many.
TEST(MoeRouteSm90, TiesGoToTheLowerExpert) {
  Random random(1);
  for (const int experts : {6, 64, 256, 300, 1024}) {
    const int64_t rows = 37;
    const int top_k = experts < 8 ? 3 : 8;
    std::vector<float> logits, bias;
    for (int64_t i = 0; i < rows * experts; ++i) logits.push_back(static_cast<float>(random.Below(5)) - 2.0f);
    for (int e = 0; e < experts; ++e) bias.push_back(0.25f * static_cast<float>(random.Below(3)));
    const Routed r = RouteOnDevice(logits, bias, rows, top_k, 2.0f);
    const std::vector<double> wide_bias(bias.begin(), bias.end());
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<double> x(logits.begin() + row * experts, logits.begin() + (row + 1) * experts);
      const ref::Choice expected = ref::Route(x, wide_bias, top_k, true, 2.0);
      for (int k = 0; k < top_k; ++k) {
        const auto at = static_cast<size_t>(row * top_k + k);
        ASSERT_EQ(r.chosen[at], expected.experts[static_cast<size_t>(k)])
            << experts << " experts, row " << row;
        ASSERT_NEAR(r.weights[at], expected.weights[static_cast<size_t>(k)], 1e-5);
      }
    }
  }
}

// Nearly equal scores may be chosen either way; everything else is fixed.
TEST(MoeRouteSm90, RandomLogits) {
  Random random(2);
  const int experts = 256, top_k = 8;
  for (const int64_t rows : {1, 7, 8, 9, 1000}) {
    const std::vector<float> logits = random.Normals(rows * experts);
    const std::vector<float> bias = random.Normals(experts, 0.1);
    const Routed r = RouteOnDevice(logits, bias, rows, top_k, 2.446f);
    for (int64_t row = 0; row < rows; ++row) {
      const auto score = [&](int64_t e) {
        return 1 / (1 + std::exp(-double{logits[static_cast<size_t>(row * experts + e)]}));
      };
      const std::set<int64_t> chosen(r.chosen.begin() + row * top_k, r.chosen.begin() + (row + 1) * top_k);
      ASSERT_EQ(chosen.size(), size_t{8});
      double least = 1e9, sum = 0;
      for (const int64_t e : chosen) {
        least = std::min(least, score(e) + bias[static_cast<size_t>(e)]);
        sum += score(e);
      }
      int k = 0;
      for (const int64_t e : chosen) {  // ascending
        const auto at = static_cast<size_t>(row * top_k + k++);
        ASSERT_EQ(r.chosen[at], e);
        ASSERT_NEAR(r.weights[at], 2.446 * score(e) / sum, 1e-5);
      }
      for (int64_t e = 0; e < experts; ++e) {
        if (chosen.count(e) == 0) {
          ASSERT_LE(score(e) + bias[static_cast<size_t>(e)], least + 1e-6);
        }
      }
    }
  }
}

TEST(MoeRouteSm90, PaddingAndNaNs) {
  std::vector<float> logits(4 * 256, std::numeric_limits<float>::quiet_NaN());
  for (int e = 0; e < 256; ++e) logits[static_cast<size_t>(e)] = static_cast<float>(e % 16);
  const Routed r = RouteOnDevice(logits, std::vector<float>(256, 0.0f), 4, 8, 1.0f, 2);
  for (int k = 0; k < 8; ++k) {
    EXPECT_EQ(r.chosen[static_cast<size_t>(k)], 15 + 16 * k);
    EXPECT_EQ(r.chosen[static_cast<size_t>(8 + k)], k);  // nothing but NaN: valid experts all the same
    for (int row = 2; row < 4; ++row) {
      EXPECT_EQ(r.chosen[static_cast<size_t>(8 * row + k)], -1);
      EXPECT_EQ(r.weights[static_cast<size_t>(8 * row + k)], 0.0f);
    }
  }
}

// Experts with random weights on the device and in double.
struct Experts {
  MoeShape shape;
  std::vector<ref::Mlp> mlps;
  std::vector<DeviceArray<Bf16>> memory;
  DeviceArray<const Bf16*> gate_up{1}, down{1};
  DeviceArray<std::byte> maps{1};

  Experts(const MoeShape& s, Random& random) : shape(s) {
    std::vector<const Bf16*> up_list, down_list;
    for (int e = 0; e < s.held(); ++e) {
      const auto up = AllToBf16(random.Normals(int64_t{2} * s.width * s.hidden, 1 / std::sqrt(s.hidden)));
      const auto out = AllToBf16(random.Normals(int64_t{s.hidden} * s.width, 1 / std::sqrt(s.width)));
      const std::vector<double> wide = AllFromBf16(up);
      const auto half = static_cast<int64_t>(wide.size() / 2);
      mlps.push_back(
          {{wide.begin(), wide.begin() + half}, {wide.begin() + half, wide.end()}, AllFromBf16(out)});
      up_list.push_back(memory.emplace_back(up).data());
      down_list.push_back(memory.emplace_back(out).data());
    }
    std::vector<std::byte> bytes;
    EXPECT_EQ(MoeTensorMaps(s, up_list, down_list, bytes), cudaSuccess);
    Replace(gate_up, up_list);
    Replace(down, down_list);
    Replace(maps, bytes);
  }

  template <typename T>
  static void Replace(DeviceArray<T>& array, const std::vector<T>& host) {
    array.~DeviceArray<T>();
    new (&array) DeviceArray<T>(host);
  }
};

struct ForwardCase {
  int64_t rows = 1;
  int top_k = 4;
  int router_experts = 16;  // of which the held ones are [first, first + shape.experts)
  int first = 0;
  bool addend = false;
  int favourite = -1;   // an expert that every row chooses
  int64_t padding = 0;  // last rows that choose nothing
};

// Runs a case and compares every row with the reference in double.
void RunForward(const Experts& experts, const ForwardCase& c, uint64_t seed) {
  Random random(seed);
  const MoeShape& s = experts.shape;
  const int64_t stride = s.hidden + 8;
  const auto x = AllToBf16(random.Normals(c.rows * stride));
  const auto addend = AllToBf16(random.Normals(c.rows * s.hidden));
  std::vector<int32_t> chosen;
  std::vector<float> weights;
  for (int64_t r = 0; r < c.rows; ++r) {
    std::set<int32_t> set;
    if (c.favourite >= 0) set.insert(c.favourite);
    while (static_cast<int>(set.size()) < c.top_k)
      set.insert(static_cast<int32_t>(random.Below(c.router_experts)));
    for (const int32_t e : set) {
      chosen.push_back(r >= c.rows - c.padding ? -1 : e);
      weights.push_back(static_cast<float>(random.Uniform(0.05, 1)));
    }
  }
  const DeviceArray<Bf16> device_x(x), device_addend(addend), y(c.rows * stride);
  const DeviceArray<int32_t> device_chosen(chosen);
  const DeviceArray<float> device_weights(weights);
  const DeviceArray<std::byte> workspace(static_cast<int64_t>(MoeWorkspaceBytes(s, c.rows, c.top_k)));
  MoeForwardArgs args;
  args.shape = s;
  args.gate_up = experts.gate_up.data();
  args.down = experts.down.data();
  args.maps = experts.maps.data();
  args.x = device_x.data();
  args.x_stride = stride;
  args.rows = c.rows;
  args.chosen = device_chosen.data();
  args.weights = device_weights.data();
  args.top_k = c.top_k;
  args.first_expert = c.first;
  args.addend = c.addend ? device_addend.data() : nullptr;
  args.y = y.data();
  args.y_stride = stride;
  args.workspace = workspace.data();
  ASSERT_EQ(MoeForward(args, nullptr), cudaSuccess);
  Synchronise();
  const std::vector<double> got = AllFromBf16(y.Get());
  const int64_t step = std::max<int64_t>(1, c.rows / 64);  // the reference is slow
  std::vector<double> actual, expected;
  for (int64_t r = 0; r < c.rows; r += step) {
    std::vector<double> row;
    for (int i = 0; i < s.hidden; ++i) row.push_back(FromBf16(x[static_cast<size_t>(r * stride + i)]));
    ref::Choice choice;
    for (int k = 0; k < c.top_k; ++k) {
      const auto at = static_cast<size_t>(r * c.top_k + k);
      const int local = chosen[at] - c.first;
      if (chosen[at] < 0 || local < 0 || local >= s.experts) continue;
      choice.experts.push_back(local);
      choice.weights.push_back(weights[at]);
    }
    std::vector<double> sum =
        ref::Moe(experts.mlps, s.shared ? experts.mlps.back() : ref::Mlp{}, choice, row);
    for (int i = 0; i < s.hidden; ++i) {
      const auto at = static_cast<size_t>(i);
      expected.push_back(sum[at] + (c.addend ? FromBf16(addend[static_cast<size_t>(r * s.hidden + i)]) : 0));
      actual.push_back(got[static_cast<size_t>(r * stride + i)]);
    }
    for (int64_t i = s.hidden; i < stride; ++i)
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(r * stride + i)]));
  }
  // bf16 activations and expert outputs, two roundings of 2^-9 each.
  EXPECT_TRUE(Near(actual, expected, {1e-3, 0.02, 0, 8e-3})) << c.rows << " rows";
}

TEST(MoeForwardSm90, SmallModelEveryLength) {
  Random random(3);
  for (const bool shared : {false, true}) {
    const Experts experts({16, shared, 256, 128}, random);
    for (const int64_t rows : {1, 2, 7, 8, 9, 63, 64, 65, 129, 300}) {
      RunForward(experts, {rows}, static_cast<uint64_t>(10 + rows));
    }
  }
}

TEST(MoeForwardSm90, ExpertsOfOneRankAddendAndPadding) {
  Random random(4);
  const Experts experts({8, true, 128, 64}, random);
  for (const int64_t rows : {1, 5, 64, 65, 200}) {
    RunForward(experts, {rows, 4, 16, 4, true}, static_cast<uint64_t>(20 + rows));
    RunForward(experts, {rows, 4, 16, 12, false, -1, rows / 2}, static_cast<uint64_t>(30 + rows));
    RunForward(experts, {rows, 4, 8, 0, false, -1, rows}, static_cast<uint64_t>(40 + rows));
  }
}

TEST(MoeForwardSm90, OneExpertTakesAll) {
  Random random(5);
  const Experts experts({16, false, 128, 128}, random);
  for (const int64_t rows : {40, 64, 255, 256, 257, 530, 1000}) {
    RunForward(experts, {rows, 2, 16, 0, false, 9}, static_cast<uint64_t>(50 + rows));
  }
}

TEST(MoeForwardSm90, WidthsThatFillNoTile) {
  Random random(6);
  for (const auto& [hidden, width] : {std::pair{200, 72}, {72, 200}, {8, 8}, {2304, 40}}) {
    const Experts experts({8, true, hidden, width}, random);
    for (const int64_t rows : {1, 33, 100})
      RunForward(experts, {rows, 2, 8}, static_cast<uint64_t>(60 + rows));
  }
}

TEST(MoeForwardSm90, WidthsOfTheModel) {
  Random random(7);
  const Experts experts({12, true, 2304, 1024}, random);
  for (const int64_t rows : {1, 64, 700})
    RunForward(experts, {rows, 8, 12}, static_cast<uint64_t>(70 + rows));
}

TEST(MoeForwardSm90, RefusesWidthsThatAreNoMultipleOfEight) {
  MoeForwardArgs args;
  args.shape = {8, false, 100, 64};
  args.rows = 1;
  args.top_k = 2;
  EXPECT_EQ(MoeForward(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace perigee::test
