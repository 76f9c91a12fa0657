// KDA on CUDA against the CPU's kernels on the same inputs, rounded to BF16 beforehand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kda/kda.h"
#include "kernels/kda/kda_step.h"
#include "kernels/twin.h"
#include "tensor/parameter.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

// Relative RMSE of outputs and of states, each.
constexpr Tolerance kKda{.of_max = 1e-2, .relative_rmse = 5e-3};

struct Heads {
  int64_t count, key, value;
};
// The form on tensor cores and the plain one.
const Heads kHeads[] = {{4, 128, 128}, {3, 20, 20}, {1, 256, 64}, {2, 24, 72}, {2, 128, 130}};

TEST_F(CudaKernelTest, KdaGate) {
  const int64_t rows = 65, heads = 3, width = 20;
  const std::vector<float> bias = random_.Normals(heads * width), factor = {-0.01f, -3.f, -16.f};
  const Parameter bias_on_device(bias, Device::kCuda), factor_on_device(factor, Device::kCuda);
  Twin z = Rows(rows, heads * width, 8), g(rows, heads * width, DType::kF32);
  kernels::KdaGate(cpu(), z.host(), bias, factor, g.host());
  kernels::KdaGate(gpu(), z.device(), bias_on_device, factor_on_device, g.device());
  ExpectNear(g, kFloat);
}

// Ragged segments with states to begin with, slots in another order than rows, a row of nobody after each.
std::vector<Segment> Ragged(const std::vector<int64_t>& lengths) {
  std::vector<Segment> segments;
  int64_t row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    segments.push_back(
        {.q_begin = row, .q_len = lengths[i], .slot = static_cast<int32_t>(lengths.size() - 1 - i)});
    row += lengths[i] + 1;
  }
  return segments;
}

class CudaKdaTest : public CudaKernelTest {
 protected:
  // Both devices on the same rows, with decays as given or from their logits.
  void Compare(const Heads& heads, const std::vector<int64_t>& lengths, GateKind gates, bool from_logits) {
    SCOPED_TRACE(::testing::Message()
                 << heads.count << " heads of " << heads.key << ", " << heads.value << ", gates "
                 << static_cast<int>(gates) << (from_logits ? " from logits" : ""));
    const std::vector<Segment> segments = Ragged(lengths);
    const int64_t rows = segments.back().q_begin + segments.back().q_len + 1, keys = heads.count * heads.key;
    Twin q = Rows(rows, keys), k = Rows(rows, keys), v = Rows(rows, heads.count * heads.value),
         z = Rows(rows, keys, 4), g(rows, keys, RandomGates(random_, rows * keys, gates), DType::kF32),
         beta(rows, heads.count, random_.Uniforms(rows * heads.count, 0.01, 0.99), DType::kF32);
    const std::vector<float> bias = random_.Normals(keys);
    std::vector<float> slopes;
    for (int64_t h = 0; h < heads.count; ++h) {
      slopes.push_back(static_cast<float>(-std::exp(random_.Uniform(-3, 3))));
    }
    const Parameter bias_on_device(bias, Device::kCuda), slopes_on_device(slopes, Device::kCuda);
    const auto slots = static_cast<int64_t>(lengths.size());
    const int64_t state = keys * heads.value;
    for (const auto kernel : {KdaPrefill, KdaDecode}) {
      Twin out(rows, heads.count * heads.value),
          states(slots, state, random_.Normals(slots * state), DType::kF32);
      const auto run = [&](const KernelContext& context, const auto& view) {
        KdaArgs a{.num_heads = heads.count,
                  .key_dim = heads.key,
                  .value_dim = heads.value,
                  .q = view(q),
                  .k = view(k),
                  .v = view(v),
                  .g = {},
                  .decay = {},
                  .beta = view(beta),
                  .segments = segments,
                  .states = {.recurrent = view(states).template As<float>().data,
                             .recurrent_stride = view(states).stride},
                  .out = view(out)};
        if (!from_logits) {
          a.g = view(g);
        } else if (context.device == Device::kCpu) {
          a.decay = {view(z), bias, slopes};
        } else {
          a.decay = {view(z), bias_on_device, slopes_on_device};
        }
        kernel(context, a);
      };
      run(cpu(), [](Twin& t) { return t.host(); });
      run(gpu(), [](Twin& t) { return t.device(); });
      ExpectNear(out, kKda);
      ExpectNear(states, kKda);
    }
  }
};

const std::vector<int64_t> kLengths = {1, 63, 64, 65, 0, 200, 2};

TEST_F(CudaKdaTest, EveryWidth) {
  for (const Heads& heads : kHeads) Compare(heads, kLengths, GateKind::kMixed, false);
}

TEST_F(CudaKdaTest, EveryKindOfGate) {
  for (const GateKind gates : {GateKind::kModel, GateKind::kSlow, GateKind::kFast, GateKind::kZero}) {
    Compare(kHeads[0], kLengths, gates, false);
    Compare(kHeads[1], kLengths, gates, false);
  }
}

TEST_F(CudaKdaTest, DecaysFromLogits) {
  for (const Heads& heads : kHeads) Compare(heads, kLengths, GateKind::kModel, true);
}

// More chunks than the workspace holds at a time, and more runs than a launch.
TEST_F(CudaKdaTest, SeveralPasses) {
  Compare({2, 128, 128}, {20000, 1, 64}, GateKind::kSlow, false);
  Compare({2, 128, 128}, std::vector<int64_t>(150, 33), GateKind::kModel, true);
}

// One row of every sequence, three steps on the same states, with padding between and after.
TEST_F(CudaKdaTest, StepsOfADecode) {
  struct Case {
    Heads heads;
    int64_t width, rows;
  };
  for (const Case& c : {Case{{4, 128, 128}, 4, 5},
                        {{32, 128, 128}, 4, 1},
                        {{8, 128, 128}, 4, 40},
                        {{4, 128, 128}, 3, 5},
                        {{3, 20, 24}, 4, 6}}) {
    const auto& [heads, width, rows] = c;
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << heads.count << " heads of " << heads.key);
    const int64_t keys = heads.count * heads.key, values = heads.count * heads.value;
    const int64_t channels = 2 * keys + values, slots = rows + 2;
    const std::vector<float> taps = random_.Normals(width * channels, 0.5), bias = random_.Normals(keys),
                             norm = random_.Normals(heads.value);
    std::vector<float> slopes;
    for (int64_t h = 0; h < heads.count; ++h) {
      slopes.push_back(static_cast<float>(-std::exp(random_.Uniform(-3, 3))));
    }
    const Parameter gpu_taps(taps, Device::kCuda), gpu_bias(bias, Device::kCuda),
        gpu_norm(norm, Device::kCuda), gpu_slopes(slopes, Device::kCuda);
    Twin states(slots, keys * heads.value, random_.Normals(slots * keys * heads.value, 0.3), DType::kF32);
    Twin tails = Rows(slots, (width - 1) * channels);
    for (int step = 0; step < 3; ++step) {
      std::vector<Segment> segments;
      for (int64_t i = 0; i < rows; ++i) {
        const bool padding = rows > 1 && (i == 1 || i + 1 == rows);
        segments.push_back({.q_begin = i,
                            .q_len = padding ? 0 : 1,
                            .kv_len = 0,
                            .slot = static_cast<int32_t>(padding ? -1 : slots - 1 - (i + step) % rows)});
      }
      Twin qkv = Rows(rows, channels), z = Rows(rows, keys, 3), logits = Rows(rows, heads.count),
           gate = Rows(rows, values), out(rows, values);
      const auto run = [&](const KernelContext& context, const auto& view, const KdaDecayLogits& decay,
                           const float* tap_data, std::span<const float> weight) {
        const Matrix tail = view(tails);
        KdaStep(context, {.num_heads = heads.count,
                          .key_dim = heads.key,
                          .value_dim = heads.value,
                          .qkv = view(qkv),
                          .taps = {tap_data, width, channels},
                          .decay = decay,
                          .beta_logits = view(logits),
                          .output_gate = view(gate),
                          .norm_weight = weight,
                          .norm_eps = 1e-5f,
                          .segments = segments,
                          .states = {.recurrent = view(states).template As<float>().data,
                                     .conv = tail.data,
                                     .recurrent_stride = view(states).stride,
                                     .conv_stride = tail.stride,
                                     .conv_dtype = tail.dtype},
                          .out = view(out)});
      };
      run(
          cpu(), [](Twin& t) { return t.host(); }, {z.host(), bias, slopes}, taps.data(), norm);
      run(
          gpu(), [](Twin& t) { return t.device(); }, {z.device(), gpu_bias, gpu_slopes}, gpu_taps.data(),
          gpu_norm);
      // Without the fused kernel there is a rounding after each operation.
      ExpectNear(out, {.of_max = 2e-2, .relative_rmse = heads.key == 128 && width == 4 ? 3e-3 : 8e-3});
      ExpectNear(states, kKda);
      ExpectNear(tails, kFloat);
    }
  }
}

}  // namespace
}  // namespace perigee::kernels
