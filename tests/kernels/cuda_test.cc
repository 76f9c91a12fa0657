// Every kernel of the CUDA backend against the CPU's on the same inputs, rounded to BF16 beforehand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/activation/activation.h"
#include "kernels/conv/conv.h"
#include "kernels/device_context.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kda/kda.h"
#include "kernels/mla/mla.h"
#include "kernels/moe/moe.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"
#include "tensor/device_memory.h"
#include "tensor/parameter.h"
#include "testing/compare.h"
#include "testing/device.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/stored_weights.h"

namespace perigee::kernels {
namespace {

using test::Near;
using test::Random;
using test::StoredWeights;
using test::Tolerance;

// One rounding of a result to BF16; several in a row (a product of products).
constexpr Tolerance kRounded{.of_max = 1e-4, .relative = 5e-3, .relative_rmse = 4e-3};
constexpr Tolerance kRoundedOften{.of_max = 2e-2, .relative = 1e-2, .relative_rmse = 8e-3};
constexpr Tolerance kFloat{.of_max = 2e-5, .relative = 2e-5, .relative_rmse = 1e-5};

std::vector<float> Rounded(std::vector<float> values) {
  for (float& v : values) v = BFloat16ToFloat(FloatToBFloat16(v));
  return values;
}

// Rows in both memories. On the device they lie further apart than they are long, with NaN in between.
class Twin {
 public:
  Twin(int64_t rows, int64_t cols, const std::vector<float>& values, DType dtype = DType::kBF16)
      : rows_(rows), cols_(cols), dtype_(dtype), host_(values) {
    std::vector<float> padded(static_cast<size_t>(rows * Stride()), NAN);
    for (int64_t i = 0; i < rows * cols; ++i)
      padded[static_cast<size_t>(i / cols * Stride() + i % cols)] = values[i];
    device_ = Buffer::Of(Stored(padded).data(), padded.size() * static_cast<size_t>(DTypeBytes(dtype)),
                         Device::kCuda);
  }
  // Results: nothing written yet.
  Twin(int64_t rows, int64_t cols, DType dtype = DType::kBF16)
      : Twin(rows, cols, std::vector<float>(static_cast<size_t>(rows * cols), NAN), dtype) {}

  Matrix host() { return MatrixF(host_.data(), rows_, cols_); }
  Matrix device() const { return {device_.As<std::byte>(), dtype_, rows_, cols_, Stride()}; }
  const std::vector<float>& expected() const { return host_; }
  std::vector<float> actual() const {
    std::vector<std::byte> bytes(device_.bytes());
    device_memory::Wait({});
    device_memory::CopyToHost(bytes.data(), device_.data(), bytes.size(), {});
    device_memory::Wait({});
    std::vector<float> values;
    for (int64_t i = 0; i < rows_ * Stride(); ++i) {
      const float v = dtype_ == DType::kF32
                          ? reinterpret_cast<const float*>(bytes.data())[i]
                          : BFloat16ToFloat(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
      if (i % Stride() < cols_) {
        values.push_back(v);
      } else {
        EXPECT_TRUE(std::isnan(v)) << "written past row " << i / Stride();
      }
    }
    return values;
  }

 private:
  int64_t Stride() const { return cols_ + 8; }
  std::vector<std::byte> Stored(const std::vector<float>& values) const {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(DTypeBytes(dtype_)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::kF32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else {
        reinterpret_cast<uint16_t*>(bytes.data())[i] = FloatToBFloat16(values[i]);
      }
    }
    return bytes;
  }

  int64_t rows_, cols_;
  DType dtype_;
  std::vector<float> host_;
  Buffer device_;
};

class CudaKernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    gpu_ = std::make_unique<DeviceContext>(Device::kCuda, pool_);
  }
  const KernelContext& cpu() const { return cpu_.context(); }
  const KernelContext& gpu() const { return gpu_->context(); }
  Twin Rows(int64_t rows, int64_t cols, double scale = 1) {
    return {rows, cols, Rounded(random_.Normals(rows * cols, scale))};
  }
  void ExpectNear(const Twin& twin, const Tolerance& tolerance) {
    device_memory::Wait(gpu().stream);
    EXPECT_TRUE(Near(twin.actual(), twin.expected(), tolerance));
  }

  Random random_{7};
  ThreadPool pool_{2};
  test::KernelRunner cpu_;
  std::unique_ptr<DeviceContext> gpu_;
};

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

// Segments in mixed order with rows between them that belong to none, and slots that are not their numbers.
std::vector<Segment> SomeSegments() {
  return {{.q_begin = 9, .q_len = 1, .kv_len = 200, .slot = 4, .first_block = 0},
          {.q_begin = 0, .q_len = 3, .kv_len = 3, .slot = 2, .first_block = 4},
          {.q_begin = 11, .q_len = 130, .kv_len = 700, .slot = 0, .first_block = 5},
          {.q_begin = 4, .q_len = 2, .kv_len = 65, .slot = 1, .first_block = 16}};
}
constexpr int64_t kRowsOfSegments = 142, kSlots = 5;

TEST_F(CudaKernelTest, ConvolutionAndItsTails) {
  for (const int64_t width : {2, 4}) {
    for (const int64_t channels : {3, 96, 300}) {
      const std::vector<float> taps = random_.Normals(width * channels);
      const Parameter taps_on_device(taps, Device::kCuda);
      const int64_t tail = (width - 1) * channels;
      Twin x = Rows(kRowsOfSegments, channels, 2), y(kRowsOfSegments, channels), tails = Rows(kSlots, tail);
      CausalConv1d(cpu(), x.host(), {taps.data(), width, channels}, SomeSegments(),
                   {.conv = tails.host().data, .conv_stride = tail}, y.host());
      CausalConv1d(
          gpu(), x.device(), {taps_on_device.data(), width, channels}, SomeSegments(),
          {.conv = tails.device().data, .conv_stride = tails.device().stride, .conv_dtype = DType::kBF16},
          y.device());
      ExpectNear(y, kRounded);
      ExpectNear(tails, kFloat);
    }
  }
}

TEST_F(CudaKernelTest, KdaGate) {
  const int64_t rows = 65, heads = 3, width = 20;
  const std::vector<float> bias = random_.Normals(heads * width), factor = {-0.01f, -3.f, -16.f};
  const Parameter bias_on_device(bias, Device::kCuda), factor_on_device(factor, Device::kCuda);
  Twin z = Rows(rows, heads * width, 8), g(rows, heads * width, DType::kF32);
  kernels::KdaGate(cpu(), z.host(), bias, factor, g.host());
  kernels::KdaGate(gpu(), z.device(), bias_on_device, factor_on_device, g.device());
  ExpectNear(g, kFloat);
}

TEST_F(CudaKernelTest, KdaOutputAndState) {
  struct Case {
    int64_t heads, key, value;
  };
  for (const auto& [heads, key, value] :
       {Case{4, 128, 128}, {3, 20, 20}, {1, 256, 64}, {2, 24, 72}, {2, 128, 130}}) {
    SCOPED_TRACE(::testing::Message() << heads << " heads of " << key << ", " << value);
    Twin q = Rows(kRowsOfSegments, heads * key), k = Rows(kRowsOfSegments, heads * key),
         v = Rows(kRowsOfSegments, heads * value);
    std::vector<float> gates(static_cast<size_t>(kRowsOfSegments * heads * key));
    for (float& g : gates) g = static_cast<float>(-std::exp(random_.Uniform(-9, 4)));
    Twin g(kRowsOfSegments, heads * key, gates, DType::kF32);
    Twin beta(kRowsOfSegments, heads, random_.Uniforms(kRowsOfSegments * heads, 0.01, 0.99), DType::kF32);
    for (const bool decode : {false, true}) {
      const int64_t state = heads * key * value;
      Twin out(kRowsOfSegments, heads * value),
          states(kSlots, state, random_.Normals(kSlots * state), DType::kF32);
      const auto args = [&](bool on_device) {
        const auto view = [&](Twin& t) { return on_device ? t.device() : t.host(); };
        return KdaArgs{
            .num_heads = heads,
            .key_dim = key,
            .value_dim = value,
            .q = view(q),
            .k = view(k),
            .v = view(v),
            .g = view(g),
            .beta = view(beta),
            .segments = {},
            .states = {.recurrent = view(states).As<float>().data, .recurrent_stride = view(states).stride},
            .out = view(out)};
      };
      const std::vector<Segment> segments = SomeSegments();
      for (const bool on_device : {false, true}) {
        KdaArgs a = args(on_device);
        a.segments = segments;
        (decode ? KdaDecode : KdaPrefill)(on_device ? gpu() : cpu(), a);
      }
      ExpectNear(out, kRoundedOften);
      ExpectNear(states, {.of_max = 1e-2, .relative_rmse = 5e-3});
    }
  }
}

TEST_F(CudaKernelTest, LatentAttention) {
  for (const MlaDims& dims : {MlaDims{4, 128, 64, 128, 512}, MlaDims{32, 128, 64, 128, 512},
                              MlaDims{3, 12, 9, 5, 21}, MlaDims{8, 16, 16, 8, 32}}) {
    SCOPED_TRACE(::testing::Message() << dims.num_heads << " heads, rank " << dims.rank);
    const StoredWeights kv_b(random_, DType::kBF16, dims.num_heads * (dims.nope + dims.value), dims.rank,
                             1 / std::sqrt(static_cast<double>(dims.rank)));
    const MlaWeights host = MlaWeights::Pack(dims, kv_b.matrix());
    const MlaWeights device = MlaWeights::Pack(dims, kv_b.matrix(), Device::kCuda);
    const int64_t blocks = 20, block_tokens = 64;
    std::vector<int32_t> tables(18);
    std::iota(tables.begin(), tables.end(), 1);
    random_.Shuffle(tables);
    Twin q = Rows(kRowsOfSegments, dims.num_heads * dims.qk()), latent = Rows(kRowsOfSegments, dims.rank),
         shared_key = Rows(kRowsOfSegments, dims.rope);
    const std::vector<float> records = Rounded(random_.Normals(blocks * block_tokens * dims.record()));
    std::vector<float> host_cache = records;
    std::vector<uint16_t> narrow;
    for (const float r : records) narrow.push_back(FloatToBFloat16(r));
    const Buffer device_cache = Buffer::Of(narrow.data(), narrow.size() * 2, Device::kCuda);
    const PagedKvView host_view{host_cache.data(), block_tokens, dims.record()};
    const PagedKvView device_view{device_cache.data(), block_tokens, dims.record(), DType::kBF16};
    const std::vector<Segment> segments = SomeSegments();
    MlaAppend(cpu(), latent.host(), shared_key.host(), {segments, tables}, host_view);
    MlaAppend(gpu(), latent.device(), shared_key.device(), {segments, tables}, device_view);
    for (const bool decode : {false, true}) {
      const auto attend = decode ? MlaDecode : MlaPrefill;
      const std::vector<Segment> asked = decode ? std::vector<Segment>{segments[0], segments[3]} : segments;
      const std::vector<float> nothing(static_cast<size_t>(kRowsOfSegments * dims.num_heads * dims.value),
                                       0.0f);
      Twin out(kRowsOfSegments, dims.num_heads * dims.value, nothing);
      attend(cpu(), dims, host, q.host(), {asked, tables}, host_view, out.host());
      attend(gpu(), dims, device, q.device(), {asked, tables}, device_view, out.device());
      // Rows of no segment are nobody's.
      std::vector<float> actual, expected;
      device_memory::Wait(gpu().stream);
      const std::vector<float> all = out.actual();
      for (const Segment& s : asked) {
        const auto width = static_cast<std::ptrdiff_t>(dims.num_heads * dims.value);
        actual.insert(actual.end(), all.begin() + s.q_begin * width,
                      all.begin() + (s.q_begin + s.q_len) * width);
        expected.insert(expected.end(), out.expected().begin() + s.q_begin * width,
                        out.expected().begin() + (s.q_begin + s.q_len) * width);
      }
      EXPECT_TRUE(Near(actual, expected, kRoundedOften));
    }
    std::vector<uint16_t> after(narrow.size());
    device_memory::CopyToHost(after.data(), device_cache.data(), after.size() * 2, {});
    device_memory::Wait({});
    for (size_t i = 0; i < after.size(); ++i) ASSERT_EQ(BFloat16ToFloat(after[i]), host_cache[i]) << i;
  }
}

TEST_F(CudaKernelTest, RoutingAndExperts) {
  struct Case {
    int64_t rows, experts, top_k, hidden, width;
  };
  for (const Case& c :
       {Case{1, 16, 4, 192, 64}, {65, 256, 8, 72, 24}, {200, 16, 4, 52, 13}, {7, 5, 5, 128, 64}}) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.experts << " experts");
    MoeWeights host, device;
    const auto add = [&](MlpWeights* h, MlpWeights* d) {
      const StoredWeights gate_up(random_, DType::kBF16, 2 * c.width, c.hidden, 0.1);
      const StoredWeights down(random_, DType::kBF16, c.hidden, c.width, 0.1);
      *h = {PackedWeight::Pack(gate_up.matrix()), PackedWeight::Pack(down.matrix()), SumPartBounds(c.width)};
      *d = {PackedWeight::Pack(gate_up.matrix(), Device::kCuda),
            PackedWeight::Pack(down.matrix(), Device::kCuda), SumPartBounds(c.width)};
    };
    for (int64_t e = 0; e < c.experts; ++e) add(&host.experts.emplace_back(), &device.experts.emplace_back());
    add(&host.shared, &device.shared);
    ListExperts(device);
    const std::vector<float> bias = random_.Normals(c.experts, 0.1);
    const Parameter bias_on_device(bias, Device::kCuda);
    Twin logits(c.rows, c.experts, random_.Normals(c.rows * c.experts), DType::kF32);
    Twin x = Rows(c.rows, c.hidden), y(c.rows, c.hidden);
    const RouterOptions options{c.top_k, true, 2.446f};
    const Workspace::Scope scope(*gpu().workspace);
    const Routing on_cpu = RouteTopK(cpu(), logits.host(), bias, options);
    const Routing on_gpu = RouteTopK(gpu(), logits.device(), bias_on_device, options);
    std::vector<int32_t> experts(on_gpu.experts.size());
    std::vector<float> weights(on_gpu.weights.size());
    device_memory::CopyToHost(experts.data(), on_gpu.experts.data(), experts.size() * 4, gpu().stream);
    device_memory::CopyToHost(weights.data(), on_gpu.weights.data(), weights.size() * 4, gpu().stream);
    device_memory::Wait(gpu().stream);
    EXPECT_EQ(experts, std::vector<int32_t>(on_cpu.experts.begin(), on_cpu.experts.end()));
    EXPECT_TRUE(Near(weights, on_cpu.weights, kFloat));
    MoeForward(cpu(), host, on_cpu, x.host(), y.host());
    MoeForward(gpu(), device, on_gpu, x.device(), y.device());
    ExpectNear(y, kRoundedOften);
  }
}

}  // namespace
}  // namespace perigee::kernels
