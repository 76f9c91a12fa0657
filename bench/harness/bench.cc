#include "harness/bench.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <optional>
#include <thread>

#include "base/thread_pool.h"

namespace perigee::bench {
namespace {

int& Threads() {
  static int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return threads;
}

// The bench that runs now: Google Benchmark calls a bench several times to find its iteration count.
struct Running {
  explicit Running(std::string bench) : name(std::move(bench)), pool(Threads()) {}
  std::string name;
  ThreadPool pool;
  kernels::Workspace workspace;
  kernels::KernelContext context{&pool, &workspace};
  Prepared prepared;
};

Running& Current(const std::string& name,
                 const std::function<Prepared(const kernels::KernelContext&)>& prepare) {
  static std::optional<Running> running;
  if (!running || running->name != name) {
    running.emplace(name);
    running->prepared = prepare(running->context);
    running->prepared.run();  // workspace and pages are there when timing starts
  }
  return *running;
}

// xorshift: fast enough to fill gigabytes, and the same everywhere.
uint32_t NextRandom(uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

}  // namespace

void SetThreads(int threads) {
  Threads() = threads;
}

void AddBench(const std::string& kernel, const ShapeSet& set,
              const std::function<Prepared(const kernels::KernelContext&)>& prepare) {
  const std::string name = kernel + "/" + set.name;
  const auto body = [name, prepare](benchmark::State& state) {
    const Running& running = Current(name, prepare);
    for ([[maybe_unused]] auto _ : state) running.prepared.run();
    const auto rate = [](double amount) {
      return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    };
    const Work& work = running.prepared.work;
    if (work.flops > 0) state.counters["GFLOP"] = rate(work.flops);
    if (work.bytes > 0) state.counters["GB"] = rate(work.bytes);
  };
  benchmark::RegisterBenchmark(name.c_str(), body)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BenchMatrix::BenchMatrix(int64_t rows, int64_t cols, float low, float high)
    : rows_(rows), cols_(cols), data_(static_cast<size_t>(rows * cols)) {
  uint32_t state = 0x9e3779b9;
  for (float& x : data_) x = low + (high - low) * (static_cast<float>(NextRandom(state) >> 8) * 0x1p-24f);
}

BenchWeight::BenchWeight(int64_t rows, int64_t cols)
    : rows_(rows), cols_(cols), data_(static_cast<size_t>(rows * cols)) {
  const float scale = 1 / std::sqrt(static_cast<float>(cols));
  uint32_t state = 0x85ebca6b;
  for (uint16_t& w : data_) {
    w = FloatToBFloat16((static_cast<float>(NextRandom(state) >> 8) * 0x1p-23f - 1) * scale);
  }
}

}  // namespace perigee::bench
