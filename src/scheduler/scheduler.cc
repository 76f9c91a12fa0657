#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/paged_kv_cache.h"
#include "scheduler/chunking.h"

namespace perigee::scheduler {

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config), grid_(CutGrid(config.chunk_size)), memory_(config.num_blocks, config.max_running) {
  PERIGEE_CHECK(config.max_running >= 1 && config.num_blocks >= 1);
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

std::optional<batch::BatchPlan> Scheduler::Next() {
  PERIGEE_CHECK_MSG(!in_flight_, "the last plan was not committed");
  // The other phase first: at most one prefill step between two decode steps.
  batch::BatchPlan plan = last_phase_ == batch::Phase::kPrefill ? PlanDecode() : PlanPrefill();
  if (plan.spans.empty()) plan = last_phase_ == batch::Phase::kPrefill ? PlanPrefill() : PlanDecode();
  if (plan.spans.empty()) {
    PERIGEE_CHECK_MSG(sequences_.empty(), "sequences are left but nothing can run");
    return std::nullopt;
  }
  last_phase_ = plan.phase;
  in_flight_ = true;
  return plan;
}

batch::BatchPlan Scheduler::PlanPrefill() {
  batch::BatchPlan plan;
  plan.phase = batch::Phase::kPrefill;
  int64_t budget = config_.chunk_size;
  // Adds the sequence's next chunk; false when the prompt stays unfinished, which ends the step: whoever is
  // younger does not overtake.
  const auto add_chunk = [&](Sequence& sequence, int64_t rows) {
    memory_.Grow(sequence, sequence.num_computed() + rows);
    plan.spans.push_back(sequence.PlanRows(rows));
    budget -= rows;
    return sequence.num_computed() + rows == sequence.prompt_size();
  };
  // By index: making room shortens the list at its end.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.in_prefill()) continue;
    const int64_t rows = ChunkRows(sequence.num_computed(), sequence.prompt_size(), budget, grid_);
    if (rows == 0 || !MakeRoom(sequence, sequence.num_computed() + rows)) return plan;
    if (!add_chunk(sequence, rows)) return plan;
  }
  while (!waiting_.empty()) {
    Sequence& sequence = *waiting_.front();
    const int64_t rows = ChunkRows(0, sequence.prompt_size(), budget, grid_);
    if (rows == 0 || !CanAdmit(sequence, rows)) return plan;
    waiting_.pop_front();
    running_.push_back(&sequence);
    memory_.TakeSlot(sequence);
    if (!add_chunk(sequence, rows)) return plan;
  }
  return plan;
}

batch::BatchPlan Scheduler::PlanDecode() {
  batch::BatchPlan plan;
  plan.phase = batch::Phase::kDecode;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.in_prefill() || !MakeRoom(sequence, sequence.num_computed() + 1)) continue;
    memory_.Grow(sequence, sequence.num_computed() + 1);
    plan.spans.push_back(sequence.PlanRows(1));
  }
  return plan;
}

bool Scheduler::CanAdmit(const Sequence& sequence, int64_t rows) const {
  if (static_cast<int64_t>(running_.size()) == config_.max_running) return false;
  // Alone it has the whole pool, which suffices for every request that was accepted.
  if (running_.empty()) return true;
  // A sequence that was preempted needs all its tokens again before it gets anywhere.
  const int64_t tokens = sequence.was_preempted() ? sequence.num_tokens() : rows;
  return memory_.blocks().num_free() > SequenceMemory::BlocksFor(tokens);
}

bool Scheduler::MakeRoom(Sequence& sequence, int64_t tokens) {
  const int64_t lacking = SequenceMemory::BlocksLacking(sequence, tokens);
  while (memory_.blocks().num_free() < lacking) {
    if (running_.back() == &sequence) return false;
    PreemptYoungest();
  }
  return true;
}

void Scheduler::PreemptYoungest() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  memory_.Release(victim);
  victim.Restart();
  waiting_.push_front(&victim);
  ++stats_.preemptions;
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
  stats_.prompt_tokens += static_cast<uint64_t>(sequence.prompt_reached() - reached);
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

void Scheduler::Remove(Sequence& sequence) {
  memory_.Release(sequence);
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
  sequences_.erase(sequence.id());
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
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
    PERIGEE_CHECK_MSG(SequenceMemory::BlocksFor(s->num_computed()) == static_cast<int64_t>(s->blocks.size()),
                      "a sequence holds more or fewer blocks than its tokens need");
  }
  for (const Sequence* s : waiting_) {
    PERIGEE_CHECK_MSG(in_order(*s), "a waiting sequence is older than a running one");
    PERIGEE_CHECK(s->num_computed() == 0 && s->blocks.empty() && s->slot < 0);
  }
  CheckOwnership();
}

void Scheduler::CheckOwnership() const {
  memory_.blocks().CheckInvariants();
  memory_.slots().CheckInvariants();
  std::vector<int32_t> blocks;
  std::vector<int32_t> slots;
  for (const Sequence* s : running_) {
    blocks.insert(blocks.end(), s->blocks.begin(), s->blocks.end());
    slots.push_back(s->slot);
  }
  const auto all_different = [](std::vector<int32_t>& ids) {
    std::sort(ids.begin(), ids.end());
    return std::adjacent_find(ids.begin(), ids.end()) == ids.end();
  };
  PERIGEE_CHECK_MSG(all_different(blocks), "a block has two owners");
  PERIGEE_CHECK_MSG(all_different(slots), "a slot has two owners");
  for (const int32_t block : blocks) PERIGEE_CHECK(memory_.blocks().ref_count(block) == 1);
  for (const int32_t slot : slots) PERIGEE_CHECK(memory_.slots().in_use(slot));
  PERIGEE_CHECK_MSG(static_cast<int64_t>(blocks.size()) + memory_.blocks().num_free() == config_.num_blocks,
                    "a block is lost");
  PERIGEE_CHECK_MSG(static_cast<int64_t>(slots.size()) + memory_.slots().num_free() == config_.max_running,
                    "a slot is lost");
}

}  // namespace perigee::scheduler
