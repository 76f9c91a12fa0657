#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "cli/bench_offline.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/generate.h"
#include "cli/inspect.h"
#include "cli/plan.h"
#include "cli/score.h"
#include "cli/serve.h"

namespace perigee::cli {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

int Fail(int exit_code, const std::string& message) {
  std::fprintf(stderr, "perigee: %s\n", message.c_str());
  return exit_code;
}

int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  return Fail(status.code() == StatusCode::kUsage ? kExitUsage : kExitFailure, status.message());
}

int Run(const ShowText& show) {
  std::fputs(show.text.c_str(), stdout);
  return 0;
}
int Run(ServeFlags flags) {
  return ExitCode(RunServe(std::move(flags)));
}
int Run(GenerateFlags flags) {
  return ExitCode(RunGenerate(std::move(flags)));
}
int Run(ScoreFlags flags) {
  return ExitCode(RunScore(std::move(flags)));
}
int Run(BenchOfflineFlags flags) {
  return ExitCode(RunBenchOffline(std::move(flags)));
}
int Run(const EvalFlags& flags) {
  return ExitCode(RunEval(flags));
}
int Run(const PlanFlags& flags) {
  return ExitCode(RunPlan(flags.request, flags.json));
}
int Run(const InspectFlags& flags) {
  const Status status = RunInspect(flags.folder, flags.shape);
  // A shape's name is all that can be wrong with it.
  if (!status.ok() && !flags.shape.empty()) return Fail(kExitUsage, StrCat("--shape: ", status.message()));
  return ExitCode(status);
}

int Main(std::span<const char* const> args) {
  StatusOr<Command> command = ParseCommandLine(args);
  if (!command.ok()) return Fail(kExitUsage, command.status().message());
  const int exit_code = std::visit([](auto flags) { return Run(std::move(flags)); }, std::move(*command));
  // What was printed may have gone nowhere.
  if (exit_code == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0))
    return Fail(kExitFailure, "cannot write standard output");
  return exit_code;
}

}  // namespace
}  // namespace perigee::cli

int main(int argc, char** argv) {
  try {
    return perigee::cli::Main(
        std::span<const char* const>(argv + 1, static_cast<size_t>(argc > 0 ? argc - 1 : 0)));
  } catch (const std::exception& error) {
    // Memory that ran out, mostly: modules turn all else into a Status.
    return perigee::cli::Fail(perigee::cli::kExitFailure, error.what());
  }
}
