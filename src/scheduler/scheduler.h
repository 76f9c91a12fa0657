#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "batch/batch_plan.h"
#include "scheduler/chunking.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_memory.h"

namespace perigee::scheduler {

struct SchedulerConfig {
  int64_t max_running = 1;       // sequences with a state slot at one time
  int64_t chunk_size = 64;       // most rows of one prompt in a prefill step
  int64_t max_prefill_rows = 0;  // most rows of a prefill step, at least chunk_size; 0: chunk_size
  int64_t num_blocks = 1;        // of cache::kBlockTokens tokens each
  // Slots for snapshots, after those of running sequences; 0: no prefix cache. Otherwise chunk_size is a
  // multiple of the block.
  int64_t num_snapshots = 0;
  int64_t checkpoint_interval = 2048;  // see SnapshotPoints
  bool name_freed = false;             // plans say which memory became free
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
  int64_t cached_tokens = 0;   // prompt tokens that were not computed for it
  bool reused_answer = false;  // see Sequence::reused_answer
};

struct SchedulerStats {
  int64_t running = 0;  // have begun
  int64_t waiting = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;     // computed; a token that a preemption makes us compute again counts once
  uint64_t cached_tokens = 0;     // of prompts that are through: those that were not computed
  uint64_t generated_tokens = 0;  // sampled
  uint64_t prefix_lookups = 0;    // prompts that began and could have reused something
  uint64_t prefix_hits = 0;       // of these, those that did
  uint64_t preemptions = 0;
  uint64_t cancellations = 0;
};

// Decides what runs in each step. Deterministic: the same calls give the same plans. Knows no clock, device,
// rank or model. One thread.
//
// Sequences are admitted strictly in order of arrival, so that every running sequence is older than every
// waiting one. A step is prefill (chunks of one or several prompts) or decode (one row of every sequence past
// its prompt); they alternate while both have work. In every other prefill step the oldest prompt goes first,
// in those between the one that has the least left. When memory runs out, the prefix cache gives way; then an
// older sequence takes it from the youngest running one, which starts over later; the youngest itself waits.
// The oldest is therefore never stopped, and every sequence ends.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Whether a request of this size can ever run.
  bool Fits(int64_t prompt_tokens, int64_t max_new_tokens) const;

  // Queues a sequence that fits. Ids start above 0 and ascend from call to call.
  void Add(NewSequence request);
  // Forgets the prefixes that no sequence holds. Not between Next and Commit.
  void FlushCache();
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
  void Admit();
  // `promised`: blocks that were promised to sequences that have a slot and no rows yet.
  bool CanAdmit(Sequence& sequence, int64_t promised);
  batch::BatchPlan Plan(batch::Phase phase);
  batch::BatchPlan PlanPrefill();
  batch::BatchPlan PlanPrefill(PrefillTurn turn);
  batch::BatchPlan PlanDecode();
  PrefillWish WishOf(const Sequence& sequence) const;
  PrefillWish WishFrom(const Sequence& sequence, const SequenceMemory::Match& match) const;
  PrefillWish WishFrom(const Sequence& sequence, int64_t computed, int64_t branch_point) const;
  // Adds up to `rows` rows of the sequence's prompt to the plan, if there is memory.
  void AddChunk(Sequence& sequence, int64_t rows, batch::BatchPlan& plan);
  void Begin(Sequence& sequence, const SequenceMemory::Match& match);
  // Makes room for `tokens` tokens, from younger sequences if need be. False: the sequence has to wait.
  bool MakeRoom(Sequence& sequence, int64_t tokens);
  void PreemptYoungest();
  SequenceUpdate CommitSpan(const batch::PlannedSpan& span, const SpanOutcome& outcome);
  void CountPrompt(const Sequence& sequence, int64_t reached_before);
  void Remove(Sequence& sequence);

  const SchedulerConfig config_;
  const int64_t grid_;  // where prompts may be cut
  SequenceMemory memory_;
  std::map<uint64_t, Sequence> sequences_;
  std::vector<Sequence*> running_;  // oldest first
  std::deque<Sequence*> waiting_;   // oldest first
  uint64_t last_id_ = 0;
  batch::Phase last_phase_ = batch::Phase::kDecode;
  PrefillTurn turn_ = PrefillTurn::kOldest;  // of the next prefill step
  bool in_flight_ = false;
  SchedulerStats stats_;
};

}  // namespace perigee::scheduler
