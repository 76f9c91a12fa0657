#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "batch/batch_plan.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_memory.h"

namespace perigee::scheduler {

struct SchedulerConfig {
  int64_t max_running = 1;  // sequences with a state slot at one time
  int64_t chunk_size = 64;  // most rows of a prefill step
  int64_t num_blocks = 1;   // of cache::kBlockTokens tokens each
};

// What running a span gave.
struct SpanOutcome {
  int32_t token = -1;   // of a sampled span
  bool failed = false;  // the sequence cannot go on
};

// What a step did to one sequence.
struct SequenceUpdate {
  uint64_t id = 0;
  std::optional<int32_t> token;  // new, sampled in this step
  Finish finish = Finish::kNone;
};

struct SchedulerStats {
  int64_t running = 0;
  int64_t waiting = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;     // computed; a token that a preemption makes us compute again counts once
  uint64_t generated_tokens = 0;  // sampled
  uint64_t preemptions = 0;
  uint64_t cancellations = 0;
};

// Decides what runs in each step. Deterministic: the same calls give the same plans. Knows no clock, device,
// rank or model. One thread.
//
// Sequences are admitted strictly in order of arrival, so that every running sequence is older than every
// waiting one. A step is prefill (chunks of one or several prompts) or decode (one row of every sequence past
// its prompt); they alternate while both have work. When memory runs out, an older sequence takes it from the
// youngest running one, which starts over later; the youngest itself waits. The oldest is therefore never
// stopped, and every sequence ends.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Whether a request of this size can ever run.
  bool Fits(int64_t prompt_tokens, int64_t max_new_tokens) const;

  // Queues a sequence that fits. Ids start above 0 and ascend from call to call.
  void Add(NewSequence request);
  // Forgets a sequence and frees what it holds. False when there is none of this id. Not between Next and
  // Commit.
  bool Cancel(uint64_t id);

  // The next step, or nothing when no sequence is left. A plan must be committed before the next call.
  std::optional<batch::BatchPlan> Next();
  // The last plan could not be run and never will be: its sequences stand where they stood, to be cancelled.
  void Abandon();
  // The plan was run. `outcomes` and the result have one entry per span, in order. A sequence whose update
  // has a finish is forgotten.
  std::vector<SequenceUpdate> Commit(const batch::BatchPlan& plan, std::span<const SpanOutcome> outcomes);

  SchedulerStats stats() const;
  const SequenceMemory& memory() const { return memory_; }

  // Aborts when a block or slot is lost or owned twice, or when the queues are out of order. For tests,
  // between steps.
  void CheckInvariants() const;

 private:
  batch::BatchPlan PlanPrefill();
  batch::BatchPlan PlanDecode();
  bool CanAdmit(const Sequence& sequence, int64_t rows) const;
  // Makes room for `tokens` tokens, from younger sequences if need be. False: the sequence has to wait.
  bool MakeRoom(Sequence& sequence, int64_t tokens);
  void PreemptYoungest();
  SequenceUpdate CommitSpan(const batch::PlannedSpan& span, const SpanOutcome& outcome);
  void Remove(Sequence& sequence);
  void CheckOwnership() const;

  const SchedulerConfig config_;
  const int64_t grid_;  // where prompts may be cut
  SequenceMemory memory_;
  std::map<uint64_t, Sequence> sequences_;
  std::vector<Sequence*> running_;  // oldest first
  std::deque<Sequence*> waiting_;   // oldest first
  uint64_t last_id_ = 0;
  batch::Phase last_phase_ = batch::Phase::kDecode;
  bool in_flight_ = false;
  SchedulerStats stats_;
};

}  // namespace perigee::scheduler
