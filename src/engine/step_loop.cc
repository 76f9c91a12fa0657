#include "engine/step_loop.h"

#include <chrono>
#include <utility>

#include "base/trace.h"

namespace perigee::engine {
namespace {

void CountStep(batch::StepMode mode, ModeSteps& steps) {
  switch (mode) {
    case batch::StepMode::kDecode:
      ++steps.decode;
      return;
    case batch::StepMode::kTp:
      ++steps.tp;
      return;
    case batch::StepMode::kHead:
      ++steps.head;
      return;
    case batch::StepMode::kState:
      ++steps.state;
      return;
    case batch::StepMode::kReplicated:
      ++steps.replicated;
      return;
  }
}

CollectiveElements ElementsOf(const comm::Traffic& traffic) {
  const auto of = [&](comm::Collective c) { return traffic.elements[static_cast<size_t>(c)]; };
  return {.all_gather = of(comm::Collective::kAllGather),
          .reduce_scatter = of(comm::Collective::kReduceScatter),
          .all_reduce = of(comm::Collective::kAllReduce),
          .all_to_all = of(comm::Collective::kAllToAll),
          .broadcast = of(comm::Collective::kBroadcast)};
}

}  // namespace

StepLoop::StepLoop(const scheduler::SchedulerConfig& config, std::unique_ptr<RankTeam> team,
                   ModeChooser modes, std::vector<TokenId> stop_ids, uint64_t seed)
    : stop_ids_(std::move(stop_ids)),
      scheduler_(config),
      sampler_(seed),
      team_(std::move(team)),
      modes_(std::move(modes)) {
  PublishStats();
  thread_ = std::thread([this] { Loop(); });
}

StepLoop::~StepLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

RequestId StepLoop::Submit(Request request, OutputCallback callback) {
  RequestId id = 0;
  {
    // Number and place in the queue in one go: the scheduler relies on ascending ids.
    const std::lock_guard lock(mutex_);
    id = ++last_id_;
    commands_.push_back({.id = id, .submission = Submission{std::move(request), std::move(callback)}});
  }
  wake_.notify_one();
  return id;
}

void StepLoop::Cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({.id = id});
  }
  wake_.notify_one();
}

void StepLoop::FlushCache(std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({.flushed = std::move(done)});
  }
  wake_.notify_one();
}

EngineStats StepLoop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = published_;
  stats.work_begun = team_->work_begun();
  stats.waiting += static_cast<int64_t>(last_id_ - published_applied_);
  return stats;
}

void StepLoop::Loop() {
  SetTraceRank(0);
  bool idle = true;
  while (std::optional<std::vector<Command>> commands = TakeCommands(idle)) {
    for (Command& command : *commands) Apply(std::move(command));
    if (!commands->empty()) PublishStats();
    std::optional<batch::BatchPlan> plan = scheduler_.Next();
    idle = !plan.has_value();
    if (plan) Step(*std::move(plan));
  }
  deliveries_.EndAll(FinishReason::kCancelled);
}

std::optional<std::vector<StepLoop::Command>> StepLoop::TakeCommands(bool idle) {
  std::unique_lock lock(mutex_);
  if (idle) wake_.wait(lock, [&] { return stopping_ || !commands_.empty(); });
  std::vector<Command> commands = std::exchange(commands_, {});
  if (!stopping_) return commands;
  // What was queued last gets its final delivery too.
  lock.unlock();
  for (Command& command : commands) Apply(std::move(command));
  return std::nullopt;
}

void StepLoop::Apply(Command command) {
  if (command.flushed) {
    scheduler_.FlushCache();
    PublishStats();
    command.flushed();
  } else if (command.submission) {
    ApplySubmission(command.id, *std::move(command.submission));
  } else {
    ApplyCancel(command.id);
  }
}

void StepLoop::ApplyCancel(RequestId id) {
  if (!scheduler_.Cancel(id)) return;
  sampler_.Remove(id);
  PublishStats();
  deliveries_.End(id, FinishReason::kCancelled, Status::Ok());
}

void StepLoop::ApplySubmission(RequestId id, Submission submission) {
  Request& request = submission.request;
  sampler_.Add(id, request);
  deliveries_.Open(id, request, std::move(submission.callback));
  std::vector<TokenId> stop_ids = std::move(request.sampling.stop_token_ids);
  if (!request.sampling.ignore_eos) stop_ids.insert(stop_ids.end(), stop_ids_.begin(), stop_ids_.end());
  scheduler_.Add({.id = id,
                  .prompt = std::move(request.prompt),
                  .max_new_tokens = request.sampling.max_new_tokens,
                  .stop_ids = std::move(stop_ids),
                  .prompt_logprobs = request.sampling.prompt_logprobs});
  ++applied_;
}

void StepLoop::Step(batch::BatchPlan plan) {
  const TraceScope trace("step");
  plan.mode = modes_.Choose(plan);
  const auto begin = std::chrono::steady_clock::now();
  StatusOr<std::vector<SpanResult>> run = team_->Run(plan, sampler_);
  run_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!run.ok()) {
    GiveUp(run.status());
    return;
  }
  CountStep(plan.mode, steps_by_mode_);
  // Not after a failure: rank 0 may then still be in the step.
  collectives_ = ElementsOf(team_->worker(0).traffic());
  std::vector<SpanResult> results = std::move(run).value();
  std::vector<scheduler::SpanOutcome> outcomes;
  outcomes.reserve(results.size());
  for (const SpanResult& result : results) {
    outcomes.push_back({.token = result.token.id, .failed = result.failed});
  }
  const std::vector<scheduler::SequenceUpdate> updates = scheduler_.Commit(plan, outcomes);
  for (const scheduler::SequenceUpdate& update : updates) {
    if (update.finish != scheduler::Finish::kNone) sampler_.Remove(update.id);
  }
  // Before the deliveries: who got a final one finds its memory free.
  PublishStats();
  for (size_t i = 0; i < updates.size(); ++i) {
    deliveries_.Step(plan.spans[i], updates[i], std::move(results[i]));
  }
}

void StepLoop::GiveUp(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    health_ = reason;
  }
  scheduler_.Abandon();
  const std::vector<RequestId> open = deliveries_.OpenIds();
  for (const RequestId id : open) {
    scheduler_.Cancel(id);
    sampler_.Remove(id);
  }
  // Before the deliveries: who got a final one finds its memory free.
  PublishStats();
  for (const RequestId id : open) deliveries_.End(id, FinishReason::kError, reason);
}

Status StepLoop::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

void StepLoop::PublishStats() {
  const scheduler::SchedulerStats s = scheduler_.stats();
  const scheduler::SequenceMemory& memory = scheduler_.memory();
  const std::lock_guard lock(mutex_);
  published_ = {.running = s.running,
                .waiting = s.waiting,
                .free_blocks = memory.blocks().num_free(),
                .cached_blocks = memory.index().cached_blocks(),
                .total_blocks = memory.blocks().num_blocks(),
                .free_slots = memory.slots().num_free(),
                .total_slots = memory.slots().num_slots(),
                .used_snapshots = memory.index().used_snapshots(),
                .total_snapshots = memory.index().num_snapshots(),
                .steps = s.steps,
                .steps_by_mode = steps_by_mode_,
                .planner = modes_.stats(),
                .collectives = collectives_,
                .run_seconds = run_seconds_,
                .prompt_tokens = s.prompt_tokens,
                .cached_tokens = s.cached_tokens,
                .generated_tokens = s.generated_tokens,
                .prefix_lookups = s.prefix_lookups,
                .prefix_hits = s.prefix_hits,
                .evicted_blocks = memory.index().evicted_blocks(),
                .evicted_snapshots = memory.index().evicted_snapshots(),
                .preemptions = s.preemptions,
                .cancellations = s.cancellations,
                .failure = health_.message()};
  published_applied_ = applied_;
}

}  // namespace perigee::engine
