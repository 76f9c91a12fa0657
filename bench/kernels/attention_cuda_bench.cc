// What the passes of a KDA layer and of an MLA layer take on a GPU, at the shape of Kimi-Linear-48B with all
// 32 heads: the calls that the layers make, each timed with events (medians of 7), so that what stands beside
// the two attention kernels is seen; of a decode step, all of them in a graph as well. attention_cuda_bench
// [ROWS...], by default 8192 and 32768, then decode.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/conv/conv.h"
#include "kernels/device_context.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_step.h"
#include "kernels/mla/mla.h"
#include "kernels/norm/norm.h"
#include "tensor/buffer.h"
#include "tensor/cuda_check.h"
#include "tensor/device_memory.h"
#include "tensor/parameter.h"

namespace perigee::bench {
namespace {

constexpr int64_t kHidden = 2304, kHeads = 32, kDim = 128, kWidth = kHeads * kDim, kGateRank = 128;
constexpr int64_t kBlockTokens = 64;
constexpr kernels::MlaDims kMla{kHeads, 128, 64, 128, 512};

std::mt19937 bits(1);

std::vector<uint16_t> RandomBf16(int64_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  // A period that no row length divides: drawing gigabytes one by one would take minutes.
  const auto drawn = std::min<size_t>(values.size(), 1000003);
  for (size_t i = 0; i < drawn; ++i) values[i] = FloatToBFloat16(normal(bits));
  for (size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
  return values;
}

struct Rows {
  Rows(int64_t rows, int64_t cols, float scale = 1)
      : memory(Buffer::Of(RandomBf16(rows * cols, scale).data(), static_cast<size_t>(rows * cols) * 2,
                          Device::kCuda)),
        view(memory.As<std::byte>(), DType::kBF16, rows, cols, cols) {}
  Buffer memory;
  Matrix view;
};

kernels::PackedWeight Weight(int64_t out, int64_t in) {
  const std::vector<uint16_t> values = RandomBf16(out * in, 1 / std::sqrt(static_cast<float>(in)));
  return kernels::PackedWeight::Pack({values.data(), DType::kBF16, out, in, in}, Device::kCuda);
}

Parameter Floats(int64_t count, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = uniform(bits);
  return {values, Device::kCuda};
}

// Names a pass, runs it and prints its time.
class Passes {
 public:
  explicit Passes(kernels::DeviceContext& device) : device_(device) {
    PERIGEE_CUDA_CHECK(cudaEventCreate(&begin_));
    PERIGEE_CUDA_CHECK(cudaEventCreate(&end_));
  }

  void Begin(const std::string& title, int64_t rows) {
    std::printf("%s\n", title.c_str());
    rows_ = rows;
    sum_ = 0;
    runs_.clear();
  }
  void Time(const char* name, double flops, const std::function<void()>& run) {
    const float us = Median(run);
    sum_ += us;
    runs_.push_back(run);
    std::printf("  %-22s %9.1f us %8.2f ns a row", name, us, us * 1e3 / static_cast<double>(rows_));
    if (flops > 0) std::printf(" %7.0f TFLOP/s", flops / us * 1e-6);
    std::printf("\n");
  }
  void End(bool record) {
    std::printf("  %-22s %9.1f us %8.2f ns a row\n", "sum", sum_, sum_ * 1e3 / static_cast<double>(rows_));
    if (!record) return;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    PERIGEE_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    for (const auto& run : runs_) run();
    PERIGEE_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
    PERIGEE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::printf("  %-22s %9.1f us\n", "in a graph",
                Median([&] { PERIGEE_CUDA_CHECK(cudaGraphLaunch(exec, stream())); }));
    PERIGEE_CUDA_CHECK(cudaGraphExecDestroy(exec));
    PERIGEE_CUDA_CHECK(cudaGraphDestroy(graph));
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(device_.context().stream.handle); }

  float Median(const std::function<void()>& run) {
    std::vector<float> times;
    for (int i = 0; i < 9; ++i) {
      PERIGEE_CUDA_CHECK(cudaEventRecord(begin_, stream()));
      run();
      PERIGEE_CUDA_CHECK(cudaEventRecord(end_, stream()));
      PERIGEE_CUDA_CHECK(cudaEventSynchronize(end_));
      float ms = 0;
      PERIGEE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
      if (i >= 2) times.push_back(ms * 1000);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  kernels::DeviceContext& device_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int64_t rows_ = 0;
  double sum_ = 0;
  std::vector<std::function<void()>> runs_;
};

double Products(int64_t rows, int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}

void KdaLayer(kernels::DeviceContext& device, Passes& passes, int64_t rows, int64_t sequences) {
  const kernels::KernelContext& k = device.context();
  const bool decode = rows == sequences;
  const int64_t out = 3 * kWidth + 2 * kGateRank + kHeads;
  const kernels::PackedWeight in_proj = Weight(out, kHidden), f_b = Weight(kWidth, kGateRank),
                              g_b = Weight(kWidth, kGateRank), o_proj = Weight(kHidden, kWidth);
  const Parameter taps = Floats(4 * 3 * kWidth, -0.5f, 0.5f), bias = Floats(kWidth, -7, -2),
                  slopes = Floats(kHeads, -16, -1), norm = Floats(kDim, 0.5f, 1.5f);
  const Rows x(rows, kHidden), projected(rows, out), z(rows, kWidth), convolved(rows, 3 * kWidth),
      gate(rows, kWidth), mixed(rows, kWidth), y(rows, kHidden), tails(sequences, 9 * kWidth);
  const Parameter state = Floats(sequences * kWidth * kDim, -0.1f, 0.1f), beta = Floats(rows * kHeads, 0, 1);
  const Matrix beta_rows(const_cast<float*>(beta.data()), rows, kHeads);
  const StateView states{.recurrent = const_cast<float*>(state.data()),
                         .conv = tails.view.data,
                         .recurrent_stride = kWidth * kDim,
                         .conv_stride = 9 * kWidth,
                         .conv_dtype = DType::kBF16};
  std::vector<Segment> list;
  for (int64_t s = 0; s < sequences; ++s) {
    list.push_back({.q_begin = s * (rows / sequences),
                    .q_len = rows / sequences,
                    .kv_len = 0,
                    .slot = static_cast<int32_t>(s)});
  }
  device.BeginStep();
  const StepSpan<Segment> segments = k.Mirror(list);
  const ConstMatrixF tap_rows{taps.data(), 4, 3 * kWidth};
  const Matrix qkv = projected.view.Cols(0, 3 * kWidth), f_a = projected.view.Cols(3 * kWidth, kGateRank),
               g_a = projected.view.Cols(3 * kWidth + kGateRank, kGateRank),
               b = projected.view.Cols(3 * kWidth + 2 * kGateRank, kHeads);
  const Rows branch(rows, kHidden, 0.1f), residual(rows, kHidden);
  const Parameter hidden_norm = Floats(kHidden, 0.5f, 1.5f);
  const auto time = [&](const char* name, double flops, const std::function<void()>& run) {
    passes.Time(name, flops, run);
  };
  passes.Begin("KDA layer, " + std::to_string(rows) + " rows, " + std::to_string(sequences) + " sequences",
               rows);
  time("add and norm", 0, [&] { AddRmsNorm(k, branch.view, residual.view, hidden_norm, 1e-5f, x.view); });
  time("in_proj", Products(rows, kHidden, out), [&] { Gemm(k, x.view, in_proj, projected.view); });
  time("f_b", Products(rows, kGateRank, kWidth), [&] { Gemm(k, f_a, f_b, z.view); });
  if (!decode) {
    time("conv", 0, [&] { CausalConv1d(k, qkv, tap_rows, segments, states, convolved.view); });
    time("beta", 0, [&] { Sigmoid(k, b, beta_rows); });
    time("delta rule", 0, [&] {
      KdaPrefill(k, {.num_heads = kHeads,
                     .key_dim = kDim,
                     .value_dim = kDim,
                     .q = convolved.view.Cols(0, kWidth),
                     .k = convolved.view.Cols(kWidth, kWidth),
                     .v = convolved.view.Cols(2 * kWidth, kWidth),
                     .g = {},
                     .decay = {z.view, bias, slopes},
                     .beta = beta_rows,
                     .segments = segments,
                     .states = states,
                     .out = mixed.view});
    });
  }
  time("g_b", Products(rows, kGateRank, kWidth), [&] { Gemm(k, g_a, g_b, gate.view); });
  if (decode) {
    time("step", 0, [&] {
      KdaStep(k, {.num_heads = kHeads,
                  .key_dim = kDim,
                  .value_dim = kDim,
                  .qkv = qkv,
                  .taps = tap_rows,
                  .decay = {z.view, bias, slopes},
                  .beta_logits = b,
                  .output_gate = gate.view,
                  .norm_weight = norm,
                  .norm_eps = 1e-5f,
                  .segments = segments,
                  .states = states,
                  .out = mixed.view});
    });
  } else {
    time("gated norm", 0, [&] { GatedRmsNorm(k, mixed.view, gate.view, norm, 1e-5f, mixed.view); });
  }
  time("o_proj", Products(rows, kWidth, kHidden), [&] { Gemm(k, mixed.view, o_proj, y.view); });
  passes.End(decode);
}

void MlaLayer(kernels::DeviceContext& device, Passes& passes, int64_t rows, int64_t sequences,
              int64_t prefix) {
  const kernels::KernelContext& k = device.context();
  const bool decode = rows == sequences;
  const kernels::PackedWeight kv_a = Weight(kMla.record(), kHidden),
                              q_proj = Weight(kHeads * kMla.qk(), kHidden), o_proj = Weight(kHidden, kWidth);
  const std::vector<uint16_t> kv_b = RandomBf16(kHeads * (kMla.nope + kMla.value) * kMla.rank, 0.04f);
  const kernels::MlaWeights weights = kernels::MlaWeights::Pack(
      kMla, {kv_b.data(), DType::kBF16, kHeads * (kMla.nope + kMla.value), kMla.rank, kMla.rank},
      Device::kCuda);
  const Parameter norm = Floats(kMla.rank, 0.5f, 1.5f);
  const int64_t each = rows / sequences, keys = prefix + each;
  const int64_t blocks = (keys + kBlockTokens - 1) / kBlockTokens;
  const Rows x(rows, kHidden), records(rows, kMla.record()), q(rows, kHeads * kMla.qk()), mixed(rows, kWidth),
      y(rows, kHidden), pool(sequences * blocks * kBlockTokens, kMla.record());
  const PagedKvView cache{pool.view.data, kBlockTokens, kMla.record(), DType::kBF16, sequences * blocks};
  std::vector<int32_t> tables(static_cast<size_t>(sequences * blocks));
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i);
  std::shuffle(tables.begin(), tables.end(), bits);
  std::vector<Segment> list;
  for (int64_t s = 0; s < sequences; ++s) {
    list.push_back({.q_begin = s * each,
                    .q_len = each,
                    .kv_len = keys,
                    .slot = 0,
                    .first_block = static_cast<int32_t>(s * blocks)});
  }
  device.BeginStep();
  const PagedSegments segments{k.Mirror(list), k.Mirror(tables)};
  const auto time = [&](const char* name, double flops, const std::function<void()>& run) {
    passes.Time(name, flops, run);
  };
  const Matrix latent = records.view.Cols(0, kMla.rank);
  passes.Begin("MLA layer, " + std::to_string(rows) + " rows, " + std::to_string(sequences) +
                   " sequences, after " + std::to_string(prefix),
               rows);
  time("kv_a", Products(rows, kHidden, kMla.record()), [&] { Gemm(k, x.view, kv_a, records.view); });
  time("latent norm", 0, [&] { RmsNorm(k, latent, norm, 1e-6f, latent); });
  time("append", 0, [&] { MlaAppend(k, latent, records.view.Cols(kMla.rank, kMla.rope), segments, cache); });
  time("q_proj", Products(rows, kHidden, kHeads * kMla.qk()), [&] { Gemm(k, x.view, q_proj, q.view); });
  const double pairs = static_cast<double>(rows) * (static_cast<double>(prefix) + (each + 1) / 2.0);
  const double flops = decode ? 0 : 2 * pairs * kHeads * static_cast<double>(kMla.qk() + kMla.value);
  time("attention", flops, [&] {
    (decode ? kernels::MlaDecode : kernels::MlaPrefill)(k, kMla, weights, q.view, segments, cache,
                                                        mixed.view);
  });
  time("o_proj", Products(rows, kWidth, kHidden), [&] { Gemm(k, mixed.view, o_proj, y.view); });
  passes.End(decode);
}

int Main(int argc, char** argv) {
  if (const Status status = device_memory::Open(0); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  ThreadPool pool(1);
  kernels::DeviceContext device(Device::kCuda, pool);
  Passes passes(device);
  std::vector<int64_t> lengths;
  for (int i = 1; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
  if (lengths.empty()) lengths = {8192, 32768};
  for (const int64_t rows : lengths) {
    KdaLayer(device, passes, rows, 1);
    MlaLayer(device, passes, rows, 1, 0);
  }
  MlaLayer(device, passes, 8192, 1, 57344);
  MlaLayer(device, passes, 8192, 32, 0);
  for (const int64_t batch : {1, 32, 64}) {
    KdaLayer(device, passes, batch, batch);
    MlaLayer(device, passes, batch, batch, 4096);
  }
  return 0;
}

}  // namespace
}  // namespace perigee::bench

int main(int argc, char** argv) {
  return perigee::bench::Main(argc, argv);
}
