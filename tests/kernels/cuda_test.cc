// Every kernel of the CUDA backend against the CPU's on the same inputs, rounded to BF16 beforehand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/conv/conv.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kda/kda.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"
#include "kernels/twin.h"
#include "tensor/device_memory.h"
#include "tensor/parameter.h"
#include "testing/stored_weights.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{1, 1}, {1, 192}, {3, 17}, {64, 128}, {65, 2304}, {200, 72}};

TEST_F(CudaKernelTest, Norms) {
  for (const auto& [rows, cols] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
    const std::vector<float> weight = random_.Normals(cols);
    const Parameter on_device(weight, Device::kCuda);
    Twin x = Rows(rows, cols), branch = Rows(rows, cols), y(rows, cols), z(rows, cols), gated(rows, cols);
    RmsNorm(cpu(), x.host(), weight, 1e-5f, y.host());
    RmsNorm(gpu(), x.device(), on_device, 1e-5f, y.device());
    ExpectNear(y, kRounded);
    GatedRmsNorm(cpu(), x.host(), branch.host(), weight, 1e-5f, gated.host());
    GatedRmsNorm(gpu(), x.device(), branch.device(), on_device, 1e-5f, gated.device());
    ExpectNear(gated, kRounded);
    AddRmsNorm(cpu(), branch.host(), x.host(), weight, 1e-5f, z.host());
    AddRmsNorm(gpu(), branch.device(), x.device(), on_device, 1e-5f, z.device());
    ExpectNear(z, kRoundedOften);
    ExpectNear(x, kRounded);
  }
}

TEST_F(CudaKernelTest, GatedNormOfManyHeads) {
  for (const int64_t width : {128, 20}) {
    for (const int64_t heads : {1, 3, 32}) {
      const std::vector<float> weight = random_.Normals(width);
      const Parameter on_device(weight, Device::kCuda);
      Twin x = Rows(37, heads * width), gate = Rows(37, heads * width, 3), y(37, heads * width);
      GatedRmsNorm(cpu(), x.host(), gate.host(), weight, 1e-5f, y.host());
      GatedRmsNorm(gpu(), x.device(), gate.device(), on_device, 1e-5f, y.device());
      ExpectNear(y, kRounded);
    }
  }
}

TEST_F(CudaKernelTest, Activations) {
  for (const auto& [rows, cols] : kShapes) {
    Twin gate = Rows(rows, cols, 4), up = Rows(rows, cols), y(rows, cols), s(rows, cols, DType::kF32);
    SiluMul(cpu(), gate.host(), up.host(), y.host());
    SiluMul(gpu(), gate.device(), up.device(), y.device());
    ExpectNear(y, kRounded);
    Sigmoid(cpu(), gate.host(), s.host());
    Sigmoid(gpu(), gate.device(), s.device());
    ExpectNear(s, kFloat);
    AddInPlace(cpu(), gate.host(), up.host());
    AddInPlace(gpu(), gate.device(), up.device());
    ExpectNear(up, kRounded);
  }
}

TEST_F(CudaKernelTest, RowsMove) {
  for (const auto& [rows, cols] : kShapes) {
    Twin x = Rows(rows, cols), gathered(rows, cols), scattered(rows, cols), copied(rows, cols, DType::kF32);
    std::vector<int64_t> index(static_cast<size_t>(rows));
    std::iota(index.begin(), index.end(), 0);
    random_.Shuffle(index);
    for (const bool on_device : {false, true}) {
      const KernelContext& k = on_device ? gpu() : cpu();
      const auto view = [&](Twin& t) { return on_device ? t.device() : t.host(); };
      GatherRows(k, view(x), index, view(gathered));
      ScatterRows(k, view(x), index, view(scattered));
      CopyRows(k, view(x), view(copied));
    }
    device_memory::Wait(gpu().stream);
    EXPECT_EQ(gathered.actual(), gathered.expected());
    EXPECT_EQ(scattered.actual(), scattered.expected());
    EXPECT_EQ(copied.actual(), copied.expected());
    ZeroRows(gpu(), x.device());
    device_memory::Wait(gpu().stream);
    EXPECT_EQ(x.actual(), std::vector<float>(static_cast<size_t>(rows * cols), 0.0f));
  }
}

TEST_F(CudaKernelTest, EmbeddingOfEveryStoredType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const int64_t vocab = 19, cols = 72;
    std::vector<std::byte> table(static_cast<size_t>(vocab * cols * DTypeBytes(dtype)));
    for (int64_t i = 0; i < vocab * cols; ++i) {
      const float v = static_cast<float>(random_.Below(201) - 100) / 16;
      const auto half = static_cast<uint16_t>(random_.Next() & 0xbbff);  // finite
      if (dtype == DType::kF32) reinterpret_cast<float*>(table.data())[i] = v;
      if (dtype == DType::kBF16) reinterpret_cast<uint16_t*>(table.data())[i] = FloatToBFloat16(v);
      if (dtype == DType::kF16) reinterpret_cast<uint16_t*>(table.data())[i] = half;
    }
    const Buffer on_device = Buffer::Of(table.data(), table.size(), Device::kCuda);
    const std::vector<int32_t> ids = {18, 0, 7, 7, 3};
    Twin y(5, cols);
    EmbeddingLookup(cpu(), {table.data(), dtype, vocab, cols}, ids, y.host());
    EmbeddingLookup(gpu(), {on_device.data(), dtype, vocab, cols}, ids, y.device());
    ExpectNear(y, kRounded);
  }
}

TEST_F(CudaKernelTest, Products) {
  struct Case {
    int64_t rows, in, out;
  };
  for (const auto& [rows, in, out] : {Case{1, 192, 70},
                                      {1, 2304, 512},
                                      {7, 64, 33},
                                      {64, 72, 24},
                                      {130, 512, 1024},
                                      {300, 136, 16},
                                      {5, 13, 52}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << in << " -> " << out);
    const StoredWeights w(random_, DType::kBF16, out, in, 0.1);
    const PackedWeight host = PackedWeight::Pack(w.matrix());
    const PackedWeight device = PackedWeight::Pack(w.matrix(), Device::kCuda);
    Twin x = Rows(rows, in), y(rows, out), z(rows, out, DType::kF32), parts(rows, out);
    Gemm(cpu(), x.host(), host, y.host());
    Gemm(gpu(), x.device(), device, y.device());
    ExpectNear(y, kRounded);
    Gemm(cpu(), x.host(), host, z.host());
    Gemm(gpu(), x.device(), device, z.device());
    ExpectNear(z, kFloat);
    const std::vector<int64_t> bounds = {in / 3, in / 2, in};
    GemmInParts(cpu(), x.host().Cols(0, in - in / 3), host, bounds, parts.host());
    GemmInParts(gpu(), x.device().Cols(0, in - in / 3), device, bounds, parts.device());
    ExpectNear(parts, kRounded);
  }
}

TEST_F(CudaKernelTest, ConvolutionAndItsTails) {
  const std::vector<Segment> one_row_each = {{.q_begin = 2, .q_len = 1, .slot = 4},
                                             {.q_begin = 0, .q_len = 1, .slot = 1},
                                             {.q_begin = 1, .q_len = 0, .slot = -1}};
  for (const std::vector<Segment>& segments : {SomeSegments(), one_row_each}) {
    for (const int64_t width : {2, 4}) {
      for (const int64_t channels : {3, 96, 300, 1536}) {
        const std::vector<float> taps = random_.Normals(width * channels);
        const Parameter taps_on_device(taps, Device::kCuda);
        const int64_t tail = (width - 1) * channels;
        Twin x = Rows(kRowsOfSegments, channels, 2), y(kRowsOfSegments, channels), tails = Rows(kSlots, tail);
        const Matrix gpu_tails = tails.device();
        CausalConv1d(cpu(), x.host(), {taps.data(), width, channels}, segments,
                     {.conv = tails.host().data, .conv_stride = tail}, y.host());
        CausalConv1d(gpu(), x.device(), {taps_on_device.data(), width, channels}, segments,
                     {.conv = gpu_tails.data, .conv_stride = gpu_tails.stride, .conv_dtype = DType::kBF16},
                     y.device());
        ExpectNear(y, kRounded);
        ExpectNear(tails, kFloat);
      }
    }
  }
}

}  // namespace
}  // namespace perigee::kernels
