// Times the MLA and MoE kernels of Hopper at the shapes of Kimi-Linear-48B. Every call is captured in a graph
// and replayed; times are medians by events, with 256 MiB written between replays, so that the L2 cache is
// cold. Fast forms are held against plain ones on the same inputs first. Exit status 1 when one is off.
#include <cuda_bf16.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/device_context.h"
#include "kernels/gemm/gemm.h"
#include "kernels/mla/mla_flash_cudnn.h"
#include "kernels/mla/mla_sm90.h"
#include "kernels/moe/moe_sm90.h"

namespace perigee::bench {
namespace {

using namespace kernels::cuda;
using Bf16 = __nv_bfloat16;

int wrong = 0;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

__device__ float Uniform(uint64_t i, uint64_t seed) {  // [-1, 1), splitmix64
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
}

template <typename T>
__global__ void FillKernel(T* out, int64_t count, float scale, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    // Sum of three: near enough to normal, variance 1.
    const float x = Uniform(3 * i, seed) + Uniform(3 * i + 1, seed) + Uniform(3 * i + 2, seed);
    out[i] = static_cast<T>(x * scale);
  }
}

template <typename T>
class Device {
 public:
  explicit Device(int64_t count) : count_(count) {
    Check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
  }
  Device(int64_t count, float scale, uint64_t seed) : Device(count) {
    FillKernel<<<1024, 256>>>(data_, count, scale, seed);
    Check(cudaGetLastError(), "fill");
  }
  explicit Device(const std::vector<T>& host) : Device(static_cast<int64_t>(host.size())) {
    Check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  void Poison() { Check(cudaMemset(data_, 0xFF, count_ * sizeof(T)), "poison"); }
  std::vector<T> Get(int64_t first, int64_t count) const {
    std::vector<T> host(static_cast<size_t>(count));
    Check(cudaMemcpy(host.data(), data_ + first, count * sizeof(T), cudaMemcpyDeviceToHost), "copy back");
    return host;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  int64_t count_;
};

cudaStream_t stream;
Device<char>* flush;

// Median milliseconds of a replay.
double Time(int repeats, const std::function<void()>& call) {
  call();
  Check(cudaStreamSynchronize(stream), "first run");
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  call();
  Check(cudaStreamEndCapture(stream, &graph), "end of capture");
  Check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < repeats + 2; ++i) {
    Check(cudaMemsetAsync(flush->data(), i, 256 << 20, stream), "flush");
    Check(cudaEventRecord(begin, stream), "record");
    Check(cudaGraphLaunch(replay, stream), "replay");
    Check(cudaEventRecord(end, stream), "record");
    Check(cudaEventSynchronize(end), "replay");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 2) times.push_back(ms);
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

void Agree(const char* what, const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = __bfloat162float(a[i]), y = __bfloat162float(b[i]);
    error += (x - y) * (x - y);
    size += y * y;
  }
  const double relative = std::sqrt(error / size);
  const bool good = relative < 1e-2;
  std::printf("%-58s relative RMSE %.2e %s\n", what, relative, good ? "ok" : "WRONG");
  if (!good) ++wrong;
}

__global__ void CopyKernel(const uint4* from, uint4* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = from[i];
  }
}

// Terabytes a second that a copy reads and writes: what kernels bound by memory are held against.
double BenchCopy() {
  const int64_t bytes = int64_t{4} << 30;
  const Device<char> from(bytes), to(bytes);
  const double ms = Time(5, [&] {
    CopyKernel<<<132 * 32, 512, 0, stream>>>(reinterpret_cast<const uint4*>(from.data()),
                                             reinterpret_cast<uint4*>(to.data()), bytes / 16);
  });
  const double rate = 2e-9 * static_cast<double>(bytes) / ms;
  std::printf("copy of 4 GiB, read + write: %.2f TB/s\n", rate);
  return rate;
}

class MoeBench {
 public:
  MoeBench() {
    std::vector<const Bf16*> up, down;
    for (int e = 0; e < kShape.held(); ++e) {
      up.push_back(gate_up_.data() + e * kUp);
      down.push_back(down_.data() + e * kDown);
    }
    std::vector<std::byte> maps;
    Check(MoeTensorMaps(kShape, up, down, maps), "tensor maps");
    up_list_.reset(new Device<const Bf16*>(up));
    down_list_.reset(new Device<const Bf16*>(down));
    maps_.reset(new Device<std::byte>(maps));
    context_ = device_.context();
    context_.stream = {stream};
    // Logits of variance 1.
    std::vector<uint16_t> gate(static_cast<size_t>(256) * kShape.hidden);
    std::mt19937 bits(11);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(kShape.hidden)));
    for (uint16_t& g : gate) g = FloatToBFloat16(normal(bits));
    const kernels::StoredMatrix stored{gate.data(), DType::kBF16, 256, kShape.hidden, kShape.hidden};
    router_ = kernels::PackedWeight::Pack(stored, perigee::Device::kCuda);
  }

  MoeForwardArgs Args(int64_t rows, Bf16* y, void* workspace) const {
    MoeForwardArgs a;
    a.shape = kShape;
    a.gate_up = up_list_->data();
    a.down = down_list_->data();
    a.maps = maps_->data();
    a.x = x_.data();
    a.x_stride = kShape.hidden;
    a.rows = rows;
    a.chosen = chosen_.data();
    a.weights = weights_.data();
    a.top_k = kTopK;
    a.y = y;
    a.y_stride = kShape.hidden;
    a.workspace = workspace;
    return a;
  }
  // The router's product and its choice.
  void Route(int64_t rows) const {
    const auto* x = reinterpret_cast<const std::byte*>(x_.data());
    auto* logits = reinterpret_cast<std::byte*>(logits_.data());
    kernels::Gemm(context_, {x, DType::kBF16, rows, kShape.hidden, kShape.hidden}, router_,
                  {logits, DType::kF32, rows, 256, 256});
    MoeRouteArgs r;
    r.logits = logits_.data();
    r.logits_stride = 256;
    r.bias = bias_.data();
    r.rows = rows;
    r.experts = 256;
    r.top_k = kTopK;
    r.scaling_factor = 2.446f;
    r.chosen = chosen_.data();
    r.weights = weights_.data();
    Check(MoeRoute(r, stream), "route");
  }

  void Once() const {
    const Device<std::byte> workspace(static_cast<int64_t>(MoeWorkspaceBytes(kShape, kRows, kTopK)));
    const Device<Bf16> y(kRows * kShape.hidden);
    for (const int64_t rows : {kRows, int64_t{65}, int64_t{64}, int64_t{1}}) {
      Route(rows);
      Check(MoeForward(Args(rows, y.data(), workspace.data()), stream), "forward");
    }
    Check(cudaStreamSynchronize(stream), "once");
  }

  void Run(double copy_tbs) const {
    const Device<std::byte> workspace(static_cast<int64_t>(MoeWorkspaceBytes(kShape, kRows, kTopK)));
    const Device<Bf16> y(kRows * kShape.hidden), few(8 * kShape.hidden);
    Device<Bf16>& poisoned = const_cast<Device<Bf16>&>(y);
    poisoned.Poison();
    Route(kRows);
    Check(MoeForward(Args(kRows, y.data(), workspace.data()), stream), "forward");
    Check(MoeForward(Args(8, few.data(), workspace.data()), stream), "forward");
    Check(cudaStreamSynchronize(stream), "forward");
    Agree("MoE 32768 rows (tiles) against 8 of them (streamed)", y.Get(0, 8 * kShape.hidden),
          few.Get(0, 8 * kShape.hidden));
    for (const int64_t rows : {32768, 16384, 8192, 4096, 2048, 512, 128, 65, 64, 32, 9, 8, 4, 2, 1}) {
      const double ms = Time(rows > 1000 ? 9 : 15, [&] {
        Route(rows);
        Check(MoeForward(Args(rows, y.data(), workspace.data()), stream), "forward");
      });
      const auto chosen = chosen_.Get(0, rows * kTopK);
      std::vector<bool> used(256);
      for (const int32_t e : chosen) used[static_cast<size_t>(e)] = true;
      const auto distinct = std::count(used.begin(), used.end(), true) + 1;
      const double flop = static_cast<double>(rows) * (kTopK + 1) * 3 * 2 * kShape.hidden * kShape.width;
      const double bytes = static_cast<double>(distinct) * (kUp + kDown) * 2;
      std::printf(
          "MoE %6ld rows, router to output: %9.1f us  %6.1f TFLOP/s  %3ld experts' weights at %.2f TB/s, "
          "floor %.1f us\n",
          static_cast<long>(rows), 1e3 * ms, 1e-9 * flop / ms, static_cast<long>(distinct), 1e-9 * bytes / ms,
          1e-6 * bytes / copy_tbs);
    }
  }

 private:
  static constexpr MoeShape kShape{256, true, 2304, 1024};
  static constexpr int kTopK = 8;
  static constexpr int64_t kRows = 32768;
  static constexpr int64_t kUp = 2 * 1024 * 2304;
  static constexpr int64_t kDown = 2304 * 1024;

  Device<Bf16> gate_up_{257 * kUp, 0.02f, 1};
  Device<Bf16> down_{257 * kDown, 0.03f, 2};
  Device<Bf16> x_{kRows * 2304, 1.0f, 3};
  ThreadPool pool_{1};
  kernels::DeviceContext device_{perigee::Device::kCuda, pool_};
  kernels::KernelContext context_;
  kernels::PackedWeight router_;
  Device<float> logits_{kRows * 256};
  Device<float> bias_{256, 0.05f, 5};
  Device<int32_t> chosen_{kRows * kTopK};
  Device<float> weights_{kRows * kTopK};
  std::unique_ptr<Device<const Bf16*>> up_list_, down_list_;
  std::unique_ptr<Device<std::byte>> maps_;
};

void BenchPrefill(int64_t rows, int64_t prefix, bool exact) {
  const int heads = 32, qk = 192, value = 128;
  const int64_t keys = rows + prefix;
  const Device<Bf16> q(rows * heads * qk, 1.0f, 6), k(keys * heads * qk, 1.0f, 7),
      v(keys * heads * 256, 1.0f, 8);
  Device<Bf16> out(rows * heads * value), few(8 * heads * value);
  const Device<float> lse(rows * heads);
  auto flash = MlaFlash::Create({heads, qk, value, heads * qk, heads * qk, heads * 256, qk, 256, true});
  if (!flash.ok()) {
    std::printf("%s\n", flash.status().message().c_str());
    ++wrong;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto bytes = exact ? flash.value()->PrepareExact(rows, keys) : flash.value()->Prepare(1, rows, keys);
  const std::chrono::duration<double, std::milli> planning = std::chrono::steady_clock::now() - begin;
  if (!bytes.ok()) {
    std::printf("%s\n", bytes.status().message().c_str());
    ++wrong;
    return;
  }
  const Device<char> workspace(static_cast<int64_t>(bytes.value()));
  const MlaFlashRun run{0, rows, 0, keys};
  MlaFlashArgs args{q.data(),   k.data(),  v.data() + 128, {&run, 1}, 1 / std::sqrt(192.0f),
                    out.data(), lse.data()};
  out.Poison();
  const double ms = Time(rows > 30000 ? 3 : 7, [&] {
    const Status status = flash.value()->Run(args, workspace.data(), bytes.value(), stream);
    if (!status.ok()) Check(cudaErrorUnknown, status.message().c_str());
  });
  MlaPlainArgs plain{q.data() + (rows - 8) * heads * qk,
                     k.data(),
                     v.data() + 128,
                     heads * 256,
                     256,
                     8,
                     keys,
                     heads,
                     qk,
                     value,
                     true,
                     args.scale,
                     few.data(),
                     nullptr};
  Check(MlaAttentionPlain(plain, stream), "plain attention");
  Check(cudaStreamSynchronize(stream), "plain attention");
  Agree("MLA prefill, last rows against the plain form",
        out.Get((rows - 8) * heads * value, 8 * heads * value), few.Get(0, 8 * heads * value));
  const double pairs =
      static_cast<double>(rows) * static_cast<double>(prefix) + 0.5 * static_cast<double>(rows) * rows;
  std::printf("MLA prefill %6ld rows after %6ld, %s plan: %9.1f us  %6.1f TFLOP/s  (planned in %.0f ms)\n",
              static_cast<long>(rows), static_cast<long>(prefix), exact ? "exact" : "ragged", 1e3 * ms,
              1e-9 * pairs * 2 * heads * (qk + value) / ms, planning.count());
}

void BenchDecode(int batch, int64_t keys, int heads, double copy_tbs) {
  const int64_t per = (keys + 63) / 64;
  const int64_t blocks = batch * per;
  const Device<Bf16> pool(blocks * 64 * 576, 1.0f, 9), q(int64_t{batch} * heads * 576, 1.0f, 10);
  Device<Bf16> out(int64_t{batch} * heads * 512), few(heads * 512);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; ++i)
    table[static_cast<size_t>(i)] = static_cast<int32_t>((i * 7919) % blocks);
  std::vector<Segment> runs;
  for (int b = 0; b < batch; ++b) runs.push_back({b, 1, keys, 0, static_cast<int32_t>(b * per)});
  const Device<int32_t> tables(table);
  const Device<Segment> list(runs);
  const Device<char> workspace(static_cast<int64_t>(MlaDecodeWorkspaceBytes(batch, heads)));
  MlaDecodeArgs args{{pool.data(), blocks, 64, 512, 64},
                     {list.data(), batch, tables.data()},
                     q.data(),
                     batch,
                     heads,
                     1 / std::sqrt(192.0f) / 4,
                     out.data(),
                     nullptr,
                     workspace.data()};
  out.Poison();
  const double ms = Time(9, [&] { Check(MlaDecodeHopper(args, stream), "decode"); });
  if (keys <= 40000) {
    MlaDecodeArgs plain = args;
    plain.rows = 1;
    plain.out = few.data();
    Check(MlaDecodePlain(plain, stream), "plain decode");
    Check(cudaStreamSynchronize(stream), "plain decode");
    Agree("MLA decode, first row against the plain form", out.Get(0, heads * 512), few.Get(0, heads * 512));
  }
  const double bytes = static_cast<double>(batch) * static_cast<double>(keys) * 1152;
  std::printf("MLA decode batch %3d x %7ld keys, %d heads: %9.1f us  %.2f TB/s  %.0f %% of copy\n", batch,
              static_cast<long>(keys), heads, 1e3 * ms, 1e-9 * bytes / ms, 100e-9 * bytes / ms / copy_tbs);
}

}  // namespace
}  // namespace perigee::bench

// With an argument: `moe` alone, or `once`, each MoE kernel once, for a profiler.
int main(int argc, char** argv) {
  using namespace perigee::bench;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Check(cudaStreamCreate(&stream), "stream");
  flush = new Device<char>(256 << 20);
  const std::string_view part = argc > 1 ? argv[1] : "all";
  if (part == "once") {
    MoeBench().Once();
    return 0;
  }
  const double copy = BenchCopy();
  if (part == "moe") {
    MoeBench().Run(copy);
    return wrong == 0 ? 0 : 1;
  }
  for (const int heads : {32, 8}) {
    BenchDecode(32, 32768, heads, copy);
    BenchDecode(1, 1 << 20, heads, copy);
    BenchDecode(64, 4096, heads, copy);
    BenchDecode(1, 4096, heads, copy);
  }
  MoeBench().Run(copy);
  for (const bool exact : {true, false}) {
    for (const int64_t rows : {8192, 16384, 65536}) BenchPrefill(rows, 0, exact);
    BenchPrefill(8192, 57344, exact);
    BenchPrefill(5000, 3000, exact);
  }
  return wrong == 0 ? 0 : 1;
}
