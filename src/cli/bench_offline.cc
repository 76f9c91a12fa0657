#include "cli/bench_offline.h"

#include <unistd.h>

#include <perigee_commit.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <utility>

#include "base/queue.h"
#include "base/strings.h"
#include "cli/launch.h"
#include "cli/signals.h"

namespace perigee::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Steps at whose end libraries may still be choosing algorithms.
constexpr size_t kWarmSteps = 2;

double Seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// Every prompt is another: no prefix cache, page or branch predictor knows it. The same in every run.
std::vector<engine::TokenId> RandomPrompt(const engine::ModelInfo& model, int64_t tokens) {
  static std::atomic<uint32_t> number{0};
  std::mt19937 random(number.fetch_add(1));
  std::uniform_int_distribution<engine::TokenId> ids(0, static_cast<engine::TokenId>(model.vocab_size - 1));
  std::vector<engine::TokenId> prompt(static_cast<size_t>(tokens));
  for (engine::TokenId& id : prompt) id = ids(random);
  return prompt;
}

engine::Request RequestOf(const engine::ModelInfo& model, int64_t prompt, int64_t new_tokens) {
  engine::Request request{.prompt = RandomPrompt(model, prompt)};
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_new_tokens = new_tokens;
  return request;
}

struct Delivery {
  size_t request = 0;
  Clock::time_point when;
  engine::Output output;
};

Status ErrorOf(const engine::Output& output) {
  if (output.finish == engine::FinishReason::kError) return output.status;
  if (output.finish == engine::FinishReason::kCancelled) return Cancelled("interrupted");
  return Status::Ok();
}

// Replaces the line on a terminal; silent elsewhere.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }
  void Begin(const std::string& what) {
    if (!shown_) return;
    constexpr size_t kWidth = 24;
    const size_t full = total_ == 0 ? kWidth : done_ * kWidth / total_;
    std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu %s", std::string(full, '#').c_str(),
                 std::string(kWidth - full, '.').c_str(), done_, total_, what.c_str());
    std::fflush(stderr);
    ++done_;
  }

 private:
  size_t total_;
  size_t done_ = 0;
  bool shown_;
};

// What the bench will need, where the flags leave it open.
void SizeEngine(const BenchOfflineFlags& flags, engine::EngineConfig& config) {
  config.prefix_cache = false;
  const int64_t answer = flags.steps + static_cast<int64_t>(kWarmSteps) + 1;
  int64_t longest = 1;
  int64_t tokens = 1;
  int64_t batch = 1;
  for (const int64_t prompt : flags.prompts) longest = std::max(longest, prompt + 1);
  for (const int64_t b : flags.batches) {
    batch = std::max(batch, b);
    for (const int64_t depth : flags.depths) {
      // Requests that begin early generate while the others' prompts are computed.
      const int64_t each = std::max<int64_t>(depth, 1) + answer + b;
      longest = std::max(longest, each);
      tokens = std::max(tokens, b * (each + 64));
    }
  }
  if (config.max_running_requests == 0) config.max_running_requests = batch;
  if (config.max_total_tokens == 0) config.max_total_tokens = std::max(tokens, longest);
  if (config.context_length == 0) config.context_length = longest;
}

StatusOr<BenchReport> Measure(const BenchOfflineFlags& flags, engine::Engine& engine) {
  BenchReport report;
  Progress progress(flags.prompts.size() + flags.batches.size() * flags.depths.size());
  for (const int64_t tokens : flags.prompts) {
    progress.Begin(StrCat("prompts of ", tokens));
    PERIGEE_ASSIGN_OR_RETURN(PrefillResult result, MeasurePrefill(engine, tokens, flags.repeats));
    report.prefill.push_back(std::move(result));
  }
  for (const int64_t depth : flags.depths) {
    for (const int64_t batch : flags.batches) {
      progress.Begin(StrCat("batch ", batch, " after ", depth));
      PERIGEE_ASSIGN_OR_RETURN(DecodeResult result, MeasureDecode(engine, batch, depth, flags.steps));
      report.decode.push_back(std::move(result));
    }
  }
  return report;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return InvalidArgument(StrCat("--output ", Quoted(path, 300), ": cannot be written"));
  return Status::Ok();
}

Status Bench(BenchOfflineFlags flags, SignalWatcher& signals, comm::ProcessRanks* ranks) {
  const Clock::time_point begin = Clock::now();
  PERIGEE_RETURN_IF_ERROR(PrepareModel(&flags.model));
  SizeEngine(flags, flags.model.engine);
  PERIGEE_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(flags.model, ranks));
  const double start_seconds = Seconds(Clock::now() - begin);
  signals.Arm([] { _exit(130); });
  PERIGEE_ASSIGN_OR_RETURN(BenchReport report, Measure(flags, *model.engine));
  signals.Arm(nullptr);
  const engine::EngineConfig& config = flags.model.engine;
  const engine::ModelInfo& info = model.engine->model_info();
  report.setting = {.command = flags.command,
                    .commit = PERIGEE_COMMIT,
                    .machine = DescribeMachine(info),
                    .device = std::string(info.accelerator.empty() ? "cpu" : "cuda"),
                    .model = config.shape.empty() ? FolderName(config.model_path) : config.shape,
                    .random_weights = config.dummy_weights,
                    .chunk = info.chunk,
                    .start_seconds = start_seconds};
  std::fputs(ReportTable(report).c_str(), stdout);
  if (!flags.output.empty()) PERIGEE_RETURN_IF_ERROR(WriteFile(flags.output, ReportJson(report)));
  return ConcludeRanks(ranks, Status::Ok());
}

}  // namespace

StatusOr<PrefillResult> MeasurePrefill(engine::Engine& engine, int64_t tokens, int64_t repeats) {
  PrefillResult result{.tokens = tokens, .seconds = {}};
  for (int64_t i = 0; i <= repeats; ++i) {
    const auto deliveries = std::make_shared<BlockingQueue<Delivery>>();
    engine::Request request = RequestOf(engine.model_info(), tokens, 1);
    const Clock::time_point begin = Clock::now();
    PERIGEE_ASSIGN_OR_RETURN(const engine::RequestId id,
                             engine.Submit(std::move(request), [deliveries](engine::Output output) {
                               deliveries->Push({.when = Clock::now(), .output = std::move(output)});
                             }));
    static_cast<void>(id);
    for (;;) {
      const Delivery d = *deliveries->Pop();
      PERIGEE_RETURN_IF_ERROR(ErrorOf(d.output));
      if (!d.output.tokens.empty() && i > 0) result.seconds.push_back(Seconds(d.when - begin));
      if (d.output.finish != engine::FinishReason::kNone) break;
    }
  }
  return result;
}

StatusOr<DecodeResult> MeasureDecode(engine::Engine& engine, int64_t batch, int64_t depth, int64_t steps) {
  const int64_t prompt = std::max<int64_t>(depth, 1);
  const int64_t room = engine.model_info().context_length - prompt;
  const auto deliveries = std::make_shared<BlockingQueue<Delivery>>();
  std::vector<engine::RequestId> ids;
  for (size_t r = 0; r < static_cast<size_t>(batch); ++r) {
    PERIGEE_ASSIGN_OR_RETURN(
        const engine::RequestId id,
        engine.Submit(RequestOf(engine.model_info(), prompt, room), [deliveries, r](engine::Output output) {
          deliveries->Push({r, Clock::now(), std::move(output)});
        }));
    ids.push_back(id);
  }
  // The last one starts last, since prompts are computed in the order of arrival; from its first token on
  // every step has a row of each.
  DecodeResult result{.batch = batch, .depth = depth, .seconds = {}};
  std::vector<Delivery> seen;
  const size_t wanted = 1 + kWarmSteps + static_cast<size_t>(steps);
  size_t open = ids.size();
  Status failure;
  engine::EngineStats first, last;
  while (open > 0) {
    Delivery d = *deliveries->Pop();
    if (d.output.finish != engine::FinishReason::kNone) {
      --open;
      if (d.output.finish == engine::FinishReason::kError) failure = d.output.status;
      continue;
    }
    if (d.request + 1 != ids.size() || d.output.tokens.empty()) continue;
    seen.push_back(std::move(d));
    if (seen.size() == 1 + kWarmSteps) first = engine.stats();
    if (seen.size() == wanted) {
      last = engine.stats();
      for (const engine::RequestId id : ids) engine.Cancel(id);
    }
  }
  PERIGEE_RETURN_IF_ERROR(failure);
  if (seen.size() < wanted) {
    return ResourceExhausted(StrCat("batch ", batch, " after ", depth, " tokens: the requests ended after ",
                                    seen.size(),
                                    " steps together; raise --context-length or --max-total-tokens"));
  }
  for (size_t at = kWarmSteps; at + 1 < wanted; ++at) {
    result.seconds.push_back(Seconds(seen[at + 1].when - seen[at].when));
  }
  result.seconds_in_ranks = (last.run_seconds - first.run_seconds) /
                            static_cast<double>(std::max<uint64_t>(1, last.steps - first.steps));
  return result;
}

Status RunBenchOffline(BenchOfflineFlags flags) {
  SignalWatcher signals;
  PERIGEE_ASSIGN_OR_RETURN(std::unique_ptr<comm::ProcessRanks> ranks, JoinRanks(flags.model));
  if (ranks != nullptr && ranks->rank() > 0) {
    signals.Arm([] {});  // mpirun signals everybody; rank 0 says when it is over
    SizeEngine(flags, flags.model.engine);
    return FollowRankZero(std::move(flags.model), std::move(ranks));
  }
  return ConcludeRanks(ranks.get(), Bench(std::move(flags), signals, ranks.get()));
}

}  // namespace perigee::cli
