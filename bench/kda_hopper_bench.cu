// Times the CUDA kernels of KDA: medians of CUDA events. Inputs are random and, but where a line says
// otherwise, several times the size of the L2 cache.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "device_buffer.h"
#include "kernels/conv/conv_hopper.h"
#include "kernels/kda/kda_hopper.h"
#include "kernels/kda/kda_prefill_hopper.h"

namespace perigee::tests {
namespace {

using kernels::KdaCudaPrefillArgs;
using kernels::KdaCudaRun;

__device__ float Noise(uint64_t i, uint32_t salt) {  // about normal
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(salt) << 32;
  float sum = 0.0f;
  for (int n = 0; n < 4; ++n) {
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 32;
    sum += static_cast<float>(x & 0xFFFFFF) * (1.0f / 0x1000000) - 0.5f;
  }
  return sum * 1.7f;
}

// kind 0: normal; 1: heavy-tailed log decays; 2: in (0, 1).
template <typename T>
__global__ void Fill(T* to, size_t count, uint32_t salt, int kind) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    const float x = Noise(i, salt);
    to[i] = static_cast<T>(kind == 0 ? x : kind == 1 ? -__expf(3.0f * x - 2.0f) : 1.0f / (1.0f + __expf(-x)));
  }
}

template <typename T>
void Randomise(DeviceBuffer<T>& b, uint32_t salt, int kind = 0) {
  Fill<<<1024, 256>>>(b.data(), b.size(), salt, kind);
  Check(cudaGetLastError(), "fill");
}

double MedianMs(int repeats, const std::function<void()>& body) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  body();
  body();
  std::vector<float> times(repeats);
  for (float& t : times) {
    cudaEventRecord(begin);
    body();
    cudaEventRecord(end);
    Check(cudaEventSynchronize(end), "timing");
    cudaEventElapsedTime(&t, begin, end);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct PrefillBench {
  PrefillBench(int64_t rows, int heads, int sequences, int64_t chunks)
      : rows(rows),
        columns(static_cast<int64_t>(heads) * 128),
        q(rows * columns),
        k(rows * columns),
        v(rows * columns),
        out(rows * columns),
        z(rows * columns),
        g(rows * columns),
        beta(rows * heads),
        state(static_cast<size_t>(sequences) * columns * 128),
        bias(columns),
        slope(heads),
        workspace(kernels::KdaCudaPrefillWorkspaceBytes(heads, chunks)) {
    Randomise(q, 1);
    Randomise(k, 2);
    Randomise(v, 3);
    Randomise(z, 4);
    Randomise(g, 5, 1);
    Randomise(beta, 6, 2);
    Randomise(state, 7);
    Randomise(bias, 8);
    Randomise(slope, 9, 1);
    for (int i = 0; i < sequences; ++i) {
      runs.push_back({i * (rows / sequences), rows / sequences, state.data() + i * columns * 128});
    }
    args.num_heads = heads;
    args.key_dim = args.value_dim = 128;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.q_stride = args.k_stride = args.v_stride = args.out_stride = columns;
    args.beta = beta.data();
    args.beta_stride = heads;
    args.runs = runs;
    args.out = out.data();
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
    GivenDecay();
  }
  void GivenDecay() { args.decay = {g.data(), columns, nullptr, 0, nullptr, nullptr}; }
  void DecayFromZ() { args.decay = {nullptr, 0, z.data(), columns, bias.data(), slope.data()}; }
  double NsPerToken(int repeats) {
    const double ms = MedianMs(repeats, [&] { Check(kernels::KdaCudaPrefill(args, nullptr), "prefill"); });
    return ms * 1e6 / static_cast<double>(rows);
  }

  int64_t rows, columns;
  DeviceBuffer<__nv_bfloat16> q, k, v, out, z;
  DeviceBuffer<float> g, beta, state, bias, slope;
  DeviceBuffer<char> workspace;
  std::vector<KdaCudaRun> runs;
  KdaCudaPrefillArgs args;
};

void Line(int64_t rows, int heads, int sequences, int64_t chunks, int repeats) {
  PrefillBench b(rows, heads, sequences, chunks);
  b.DecayFromZ();
  const double z = b.NsPerToken(repeats);
  b.GivenDecay();
  const double g = b.NsPerToken(repeats);
  kernels::KdaCudaOverlap overlap;
  Check(kernels::KdaCudaCreateOverlap(&overlap), "overlap");
  b.args.overlap = &overlap;
  const double overlapped = b.NsPerToken(repeats);
  kernels::KdaCudaDestroyOverlap(&overlap);
  std::printf(
      "%6ld rows %2d heads %2d sequences, workspace of %4ld chunks, ns a token: %5.2f (decay from z %5.2f), "
      "overlapped %5.2f\n",
      rows, heads, sequences, chunks, g, z, overlapped);
}

// The two kernels apart, one pass of 256 chunks.
void Parts() {
  constexpr int64_t kChunks = 256;
  PrefillBench b(kChunks * 64, 32, 1, kChunks);
  auto pass = std::make_unique<kernels::kda_hopper::Pass>();
  pass->num_pieces = 1;
  pass->num_chunks = kChunks;
  pass->pieces[0] = {0, static_cast<int32_t>(b.rows), 0, b.state.data(), 0, 0};
  const auto per_token = [&](const std::function<void()>& body) {
    return MedianMs(20, body) * 1e6 / static_cast<double>(b.rows);
  };
  const double prepare = per_token([&] { Check(LaunchPrepare(b.args, *pass, nullptr), "prepare"); });
  b.DecayFromZ();
  const double from_z = per_token([&] { Check(LaunchPrepare(b.args, *pass, nullptr), "prepare"); });
  const double chain = per_token([&] { Check(LaunchChain(b.args, *pass, nullptr, nullptr), "chain"); });
  std::printf("apart, 16384 rows, 32 heads, ns a token: prepare %.2f (from z %.2f), chain %.2f\n", prepare,
              from_z, chain);
}

void Decode(int batch) {
  constexpr int kHeads = 32, kColumns = kHeads * 128;
  const int sets = std::max(1, 128 / batch);  // of sequences, so that no state is still in the cache
  const int slots = sets * batch;
  DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(batch) * 5 * kColumns), logits(batch * kHeads),
      tails(static_cast<size_t>(slots) * 9 * kColumns), out(static_cast<size_t>(batch) * kColumns);
  DeviceBuffer<float> taps(12 * kColumns), bias(kColumns), slope(kHeads), norm(128),
      state(static_cast<size_t>(slots) * kColumns * 128);
  std::vector<int32_t> ids(slots);
  for (int i = 0; i < slots; ++i) ids[i] = i;
  DeviceBuffer<int32_t> slot(ids);
  Randomise(x, 1);
  Randomise(logits, 2);
  Randomise(tails, 3);
  Randomise(taps, 4);
  Randomise(bias, 5);
  Randomise(slope, 6, 1);
  Randomise(norm, 7);
  Randomise(state, 8);
  kernels::KdaCudaDecodeArgs a;
  a.batch = batch;
  a.num_heads = kHeads;
  a.q = x.data();
  a.k = a.q + kColumns;
  a.v = a.k + kColumns;
  a.z = a.v + kColumns;
  a.gate = a.z + kColumns;
  a.q_stride = a.k_stride = a.v_stride = a.z_stride = a.gate_stride = 5 * kColumns;
  a.taps_q = taps.data();
  a.taps_k = a.taps_q + 4 * kColumns;
  a.taps_v = a.taps_k + 4 * kColumns;
  a.taps_stride = a.tail_stride = kColumns;
  a.tail_q = tails.data();
  a.tail_k = a.tail_q + 3 * kColumns;
  a.tail_v = a.tail_k + 3 * kColumns;
  a.tail_slot_stride = 9 * kColumns;
  a.state = state.data();
  a.state_slot_stride = static_cast<int64_t>(kColumns) * 128;
  a.dt_bias = bias.data();
  a.neg_exp_a = slope.data();
  a.beta_logits = logits.data();
  a.beta_stride = kHeads;
  a.norm_weight = norm.data();
  a.out = out.data();
  a.out_stride = kColumns;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Check(cudaStreamCreate(&stream), "stream");
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < sets; ++i) {
    a.slots = slot.data() + i * batch;
    Check(kernels::KdaCudaDecode(a, stream), "decode");
  }
  Check(cudaStreamEndCapture(stream, &graph), "capture");
  Check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  const double us = MedianMs(30, [&] { cudaGraphLaunch(exec, nullptr); }) * 1e3 / sets;
  const double bytes = 2.0 * batch * kColumns * 128 * 4;
  std::printf("decode, batch %3d: %7.2f us, %.2f TB/s of state\n", batch, us, bytes / us * 1e-6);
}

void ConvAndGate() {
  constexpr int64_t kRows = 32768, kColumns = 4096;
  DeviceBuffer<__nv_bfloat16> x(kRows * kColumns), y(kRows * kColumns), tail(3 * kColumns);
  DeviceBuffer<float> taps(4 * kColumns), g(kRows * kColumns), bias(kColumns), slope(32);
  Randomise(x, 1);
  Randomise(tail, 2);
  Randomise(taps, 3);
  Randomise(bias, 4);
  Randomise(slope, 5, 1);
  const kernels::ConvCudaRun run{0, kRows, tail.data()};
  const kernels::ConvCudaArgs conv{kColumns,    4,         x.data(), kColumns,
                                   taps.data(), {&run, 1}, y.data(), kColumns};
  const double conv_ms = MedianMs(20, [&] { Check(CausalConv1dCuda(conv, nullptr), "conv"); });
  const kernels::KdaCudaGateArgs gate{kRows,       32,           128,      x.data(), kColumns,
                                      bias.data(), slope.data(), g.data(), kColumns, nullptr,
                                      0,           nullptr,      0};
  const double gate_ms = MedianMs(20, [&] { Check(KdaCudaGate(gate, nullptr), "gate"); });
  std::printf("conv 32768 x 4096: %.1f us, %.2f TB/s;  gate: %.1f us, %.2f TB/s\n", conv_ms * 1e3,
              kRows * kColumns * 4.0 / conv_ms * 1e-9, gate_ms * 1e3,
              kRows * kColumns * 6.0 / gate_ms * 1e-9);
}

}  // namespace
}  // namespace perigee::tests

int main() {
  using namespace perigee::tests;
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
  Parts();
  for (const int64_t chunks : {16, 64, 256, 2048}) Line(131072, 32, 1, chunks, 7);
  Line(8192, 32, 1, 256, 20);
  Line(32768, 32, 1, 256, 10);
  Line(131072, 32, 32, 256, 7);
  Line(131072, 32, 32, 2048, 7);
  Line(131072, 8, 1, 256, 7);
  for (const int batch : {1, 32, 256}) Decode(batch);
  ConvAndGate();
  return 0;
}
