#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/paged_kv_cache.h"
#include "scheduler/chunking.h"

namespace perigee::scheduler {

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      grid_(CutGrid(config.chunk_size)),
      memory_(config.num_blocks, config.max_running, config.num_snapshots, config.checkpoint_interval) {
  PERIGEE_CHECK(config.max_running >= 1 && config.num_blocks >= 1);
  PERIGEE_CHECK(config.max_prefill_rows == 0 || config.max_prefill_rows >= config.chunk_size);
  PERIGEE_CHECK_MSG(!memory_.caching() || grid_ == cache::kBlockTokens, "reuse needs chunks of whole blocks");
  if (config.name_freed) memory_.RememberFreed();
}

bool Scheduler::Fits(int64_t prompt_tokens, int64_t max_new_tokens) const {
  return max_new_tokens <= config_.num_blocks * cache::kBlockTokens - prompt_tokens;
}

void Scheduler::Add(NewSequence request) {
  const uint64_t id = request.id;
  PERIGEE_CHECK_MSG(id > last_id_, "ids must ascend");
  PERIGEE_CHECK(Fits(static_cast<int64_t>(request.prompt.size()), request.max_new_tokens));
  last_id_ = id;
  const auto [entry, added] = sequences_.emplace(id, Sequence(std::move(request)));
  PERIGEE_CHECK(added);
  waiting_.push_back(&entry->second);
}

bool Scheduler::Cancel(uint64_t id) {
  PERIGEE_CHECK_MSG(!in_flight_, "cancelled in the middle of a step");
  const auto entry = sequences_.find(id);
  if (entry == sequences_.end()) return false;
  ++stats_.cancellations;
  Remove(entry->second);
  return true;
}

void Scheduler::Abandon() {
  PERIGEE_CHECK(in_flight_);
  in_flight_ = false;
}

void Scheduler::FlushCache() {
  PERIGEE_CHECK_MSG(!in_flight_, "flushed in the middle of a step");
  memory_.Flush();
}

std::optional<batch::BatchPlan> Scheduler::Next() {
  PERIGEE_CHECK_MSG(!in_flight_, "the last plan was not committed");
  using batch::Phase;
  Admit();
  // The other phase first: at most one prefill step between two decode steps.
  const bool prefill_first = last_phase_ == Phase::kDecode;
  batch::BatchPlan plan = Plan(prefill_first ? Phase::kPrefill : Phase::kDecode);
  if (plan.spans.empty()) plan = Plan(prefill_first ? Phase::kDecode : Phase::kPrefill);
  if (plan.spans.empty()) {
    PERIGEE_CHECK_MSG(sequences_.empty(), "sequences are left but nothing can run");
    return std::nullopt;
  }
  if (config_.name_freed) memory_.NameFreed(plan);
  last_phase_ = plan.phase;
  in_flight_ = true;
  return plan;
}

batch::BatchPlan Scheduler::Plan(batch::Phase phase) {
  return phase == batch::Phase::kPrefill ? PlanPrefill() : PlanDecode();
}

void Scheduler::Admit() {
  int64_t promised = 0;
  for (const Sequence* s : running_) promised += s->begun() ? 0 : s->memory.promised;
  while (!waiting_.empty() && CanAdmit(*waiting_.front(), promised)) {
    Sequence& sequence = *waiting_.front();
    waiting_.pop_front();
    running_.push_back(&sequence);
    memory_.TakeSlot(sequence);
    // What has gone through its prompt and finds all of that goes on in decode; others begin with their first
    // chunk, and find what was published until then.
    const SequenceMemory::Match match = memory_.Find(sequence, sequence.num_tokens());
    if (match.tokens >= sequence.prompt_size()) {
      memory_.Hold(sequence, match);
      Begin(sequence, match);
    } else {
      promised += sequence.memory.promised;
    }
  }
}

bool Scheduler::CanAdmit(Sequence& sequence, int64_t promised) {
  if (static_cast<int64_t>(running_.size()) == config_.max_running) return false;
  const SequenceMemory::Match match = memory_.Find(sequence, sequence.num_tokens());
  // A sequence that was preempted needs all its tokens again before it gets anywhere.
  const int64_t first = std::min(match.tokens + config_.chunk_size, sequence.prompt_size());
  const int64_t tokens = sequence.was_preempted() ? sequence.num_tokens() : first;
  const int64_t wanted = SequenceMemory::BlocksFor(tokens) - match.tokens / cache::kBlockTokens;
  sequence.memory.promised = wanted;
  // Alone it has the whole pool, which suffices for every request that was accepted.
  return running_.empty() || memory_.Available() - match.unheld - promised > wanted;
}

void Scheduler::Begin(Sequence& sequence, const SequenceMemory::Match& match) {
  // Counted once, when it has what it needs.
  if (memory_.CanReuse(sequence) && !sequence.was_preempted()) {
    ++stats_.prefix_lookups;
    stats_.prefix_hits += match.tokens > 0 ? 1 : 0;
  }
  sequence.Begin(match.tokens, match.mixed);
  sequence.branch_point = SequenceMemory::BranchPoint(match);
}

batch::BatchPlan Scheduler::PlanPrefill() {
  batch::BatchPlan plan = PlanPrefill(turn_);
  // Those who went first may lack memory that the oldest can take.
  if (plan.spans.empty() && turn_ == PrefillTurn::kShortest) plan = PlanPrefill(PrefillTurn::kOldest);
  if (!plan.spans.empty()) {
    turn_ = turn_ == PrefillTurn::kOldest ? PrefillTurn::kShortest : PrefillTurn::kOldest;
  }
  return plan;
}

batch::BatchPlan Scheduler::PlanPrefill(PrefillTurn turn) {
  batch::BatchPlan plan;
  plan.phase = batch::Phase::kPrefill;
  std::vector<const Sequence*> wishing;
  std::vector<PrefillWish> wishes;
  for (const Sequence* sequence : running_) {
    if (!sequence->in_prefill()) continue;
    wishing.push_back(sequence);
    wishes.push_back(WishOf(*sequence));
  }
  const int64_t budget = std::max(config_.max_prefill_rows, config_.chunk_size);
  const std::vector<int64_t> rows = ShareRows(wishes, turn, budget, config_.chunk_size);
  // Memory goes by age, whoever's turn it is: what an older one lacks comes from the end of the list.
  size_t next = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (next == wishing.size() || wishing[next] != &sequence) continue;
    if (rows[next] > 0) AddChunk(sequence, rows[next], plan);
    ++next;
  }
  return plan;
}

PrefillWish Scheduler::WishOf(const Sequence& sequence) const {
  return sequence.begun() ? WishFrom(sequence, sequence.num_computed(), sequence.branch_point)
                          : WishFrom(sequence, memory_.Find(sequence, sequence.prompt_size() - 1));
}

PrefillWish Scheduler::WishFrom(const Sequence& sequence, const SequenceMemory::Match& match) const {
  return WishFrom(sequence, match.tokens, SequenceMemory::BranchPoint(match));
}

PrefillWish Scheduler::WishFrom(const Sequence& sequence, int64_t computed, int64_t branch_point) const {
  return {.computed = computed,
          .prompt_size = sequence.prompt_size(),
          .stop = memory_.NextCut(sequence, computed, branch_point)};
}

void Scheduler::AddChunk(Sequence& sequence, int64_t rows, batch::BatchPlan& plan) {
  SequenceMemory::Match match;
  const bool begins = !sequence.begun();
  if (begins) {
    // Again: blocks may have been evicted since the rows were shared out.
    match = memory_.Find(sequence, sequence.prompt_size() - 1);
    const PrefillWish wish = WishFrom(sequence, match);
    rows = ChunkRows(wish.computed, wish.stop, rows, grid_);
    if (rows == 0) return;
    memory_.Hold(sequence, match);
  }
  const int64_t end = (begins ? match.tokens : sequence.num_computed()) + rows;
  if (!MakeRoom(sequence, end)) {
    if (begins) memory_.LetGo(sequence);
    return;
  }
  if (begins) Begin(sequence, match);
  memory_.Grow(sequence, end);
  plan.spans.push_back(memory_.PlanRows(sequence, rows));
}

batch::BatchPlan Scheduler::PlanDecode() {
  batch::BatchPlan plan;
  plan.phase = batch::Phase::kDecode;
  // By index: making room shortens the list at its end.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.in_prefill() || !MakeRoom(sequence, sequence.num_computed() + 1)) continue;
    memory_.Grow(sequence, sequence.num_computed() + 1);
    plan.spans.push_back(memory_.PlanRows(sequence, 1));
  }
  return plan;
}

bool Scheduler::MakeRoom(Sequence& sequence, int64_t tokens) {
  const int64_t lacking = SequenceMemory::BlocksLacking(sequence, tokens);
  while (!memory_.Free(lacking)) {
    if (memory_.FreeDuplicates(sequence)) continue;
    if (running_.back() == &sequence) return false;
    PreemptYoungest();
  }
  return true;
}

void Scheduler::PreemptYoungest() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  memory_.Release(victim);
  if (victim.begun()) ++stats_.preemptions;
  victim.Restart();
  waiting_.push_front(&victim);
}

std::vector<SequenceUpdate> Scheduler::Commit(const batch::BatchPlan& plan,
                                              std::span<const SpanOutcome> outcomes) {
  PERIGEE_CHECK(in_flight_ && outcomes.size() == plan.spans.size());
  in_flight_ = false;
  ++stats_.steps;
  std::vector<SequenceUpdate> updates;
  updates.reserve(plan.spans.size());
  for (size_t i = 0; i < plan.spans.size(); ++i) updates.push_back(CommitSpan(plan.spans[i], outcomes[i]));
  return updates;
}

SequenceUpdate Scheduler::CommitSpan(const batch::PlannedSpan& span, const SpanOutcome& outcome) {
  SequenceUpdate update{.id = span.request};
  const auto entry = sequences_.find(span.request);
  PERIGEE_CHECK(entry != sequences_.end());
  Sequence& sequence = entry->second;
  PERIGEE_CHECK(sequence.num_computed() == span.prefix);

  const int64_t reached = sequence.prompt_reached();
  sequence.Advance(static_cast<int64_t>(span.tokens.size()));
  memory_.Commit(sequence, outcome.failed);
  CountPrompt(sequence, reached);
  update.cached_tokens = sequence.cached_tokens();
  update.reused_answer = sequence.reused_answer();
  if (outcome.failed) {
    update.finish = Finish::kFailed;
  } else if (span.sample) {
    update.token = outcome.token;
    update.finish = sequence.Append(outcome.token);
    ++stats_.generated_tokens;
  } else if (sequence.num_computed() == sequence.num_tokens()) {
    update.finish = Finish::kLength;  // only the prompt was wanted
  }
  if (update.finish != Finish::kNone) Remove(sequence);
  return update;
}

void Scheduler::CountPrompt(const Sequence& sequence, int64_t reached_before) {
  const int64_t reached = sequence.prompt_reached();
  int64_t computed = reached - reached_before;
  if (computed > 0 && reached == sequence.prompt_size()) {
    // What was reused first and had to be computed after a preemption is known now.
    computed += sequence.skipped_tokens() - sequence.cached_tokens();
    stats_.cached_tokens += static_cast<uint64_t>(sequence.cached_tokens());
  }
  stats_.prompt_tokens += static_cast<uint64_t>(computed);
}

void Scheduler::Remove(Sequence& sequence) {
  memory_.Release(sequence);
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
  sequences_.erase(sequence.id());
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  for (const Sequence* s : running_) stats.running += s->begun() ? 1 : 0;
  stats.waiting = static_cast<int64_t>(sequences_.size()) - stats.running;
  return stats;
}

void Scheduler::CheckInvariants() const {
  PERIGEE_CHECK(!in_flight_);
  PERIGEE_CHECK(running_.size() + waiting_.size() == sequences_.size());
  PERIGEE_CHECK(static_cast<int64_t>(running_.size()) <= config_.max_running);
  uint64_t last = 0;
  const auto in_order = [&](const Sequence& sequence) {
    return sequence.id() > std::exchange(last, sequence.id());
  };
  for (const Sequence* s : running_) {
    PERIGEE_CHECK_MSG(in_order(*s), "running sequences are out of order");
    PERIGEE_CHECK(s->num_computed() < s->num_tokens());
    PERIGEE_CHECK(s->begun() || s->num_computed() == 0);
  }
  for (const Sequence* s : waiting_) {
    PERIGEE_CHECK_MSG(in_order(*s), "a waiting sequence is older than a running one");
    PERIGEE_CHECK(s->num_computed() == 0 && s->memory.blocks.empty() && s->memory.slot < 0);
  }
  memory_.CheckInvariants(running_);
}

}  // namespace perigee::scheduler
