#include <benchmark/benchmark.h>

#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <vector>

#include "harness/bench.h"
#include "kernels/benches.h"

namespace {

// --threads=N is ours; the rest is Google Benchmark's. False when N is not a thread count.
bool TakeThreads(std::vector<char*>& args) {
  constexpr std::string_view kFlag = "--threads=";
  for (size_t i = 1; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    if (!arg.starts_with(kFlag)) continue;
    const std::string_view value = arg.substr(kFlag.size());
    int threads = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), threads);
    if (error != std::errc() || end != value.data() + value.size() || threads < 1 || threads > 1024) {
      std::fprintf(stderr, "--threads: \"%s\" is not a number from 1 to 1024\n", value.data());
      return false;
    }
    perigee::bench::SetThreads(threads);
    args.erase(args.begin() + static_cast<ptrdiff_t>(i));
    return true;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> args(argv, argv + argc);
  if (!TakeThreads(args)) return 2;
  int count = static_cast<int>(args.size());
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return 2;
  for (const perigee::bench::ShapeSet& set : perigee::bench::AllShapeSets()) {
    perigee::bench::AddRowwiseBenches(set);
    perigee::bench::AddGemmBenches(set);
    perigee::bench::AddKdaBenches(set);
    perigee::bench::AddMlaBenches(set);
    perigee::bench::AddMoeBenches(set);
    perigee::bench::AddSamplingBenches(set);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
