#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/memory_plan.h"

// The facade that the server and the commands use. Everything here is plain data; tokens in, tokens out.
// Text, JSON and stop strings are the caller's business.
namespace perigee::engine {

using TokenId = int32_t;
using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;             // >= 0; 0 is greedy
  float top_p = 1.0f;                   // (0, 1]
  int32_t top_k = 0;                    // 0: all
  std::optional<uint64_t> seed;         // unset: drawn from the engine's own seed and the request's number
  int32_t choice = 0;                   // which of n answers to one prompt this is: part of the random key
  int64_t max_new_tokens = 0;           // >= 0; 0 computes the prompt only (prompt_logprobs)
  bool ignore_eos = false;              // the model's stop ids do not stop (stop_token_ids still do)
  std::vector<TokenId> stop_token_ids;  // besides the model's own
  bool logprobs = false;                // fill TokenOutput::logprob
  int32_t top_logprobs = 0;             // 0..kMaxTopLogprobs most probable tokens at every generated position
  bool prompt_logprobs = false;         // fill Output::prompt_logprobs
};

inline constexpr int32_t kMaxTopLogprobs = 20;

struct Request {
  std::vector<TokenId> prompt;  // at least one token, each in [0, vocab_size)
  SamplingParams sampling;
};

struct TopToken {
  TokenId id = 0;
  float logprob = 0;
};

// One generated token. Log-probabilities are of the model's own distribution: before temperature, top-k and
// top-p.
struct TokenOutput {
  TokenId id = 0;
  float logprob = 0;
  std::vector<TopToken> top;  // descending, ties to the lower id
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// One delivery to the caller. A request ends with exactly one delivery whose `finish` is not kNone.
struct Output {
  std::vector<TokenOutput>
      tokens;  // new since the last delivery; a stop id that ended the request is the last one
  // With prompt_logprobs, once, in the first delivery after the prompt: entry i is the log-probability of
  // prompt[i] given prompt[0..i); entry 0 is absent.
  std::vector<std::optional<float>> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;  // finish == kStop: the id that did it
  Status status;                      // finish == kError: why
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // so far, the stop id included
  int64_t cached_tokens = 0;      // prompt tokens that were not computed anew
  // Among them are some that were computed as an answer: log-probabilities are those of a run without prefix
  // cache within 5e-4, and not to the bit.
  bool reused_answer = false;
};

// Called on the engine's thread, in order for one request. Must not block and must not call back into the
// engine other than Cancel.
using OutputCallback = std::function<void(Output)>;

struct ModelInfo {
  std::string model_path;
  std::string accelerator;  // name of the device that computes, empty on the CPU
  int64_t vocab_size = 0;
  int64_t context_length = 0;     // prompt + answer that the model takes
  int64_t max_total_tokens = 0;   // tokens that the latent pool holds
  int64_t chunk = 0;              // prompt tokens of one step
  std::vector<TokenId> stop_ids;  // the model's own
  MemoryPlan memory;

  // Tokens of prompt and answer that one request may have.
  int64_t LongestRequest() const { return std::min(context_length, max_total_tokens); }
};

// Steps done in each mode (docs/context_parallel.md).
struct ModeSteps {
  uint64_t decode = 0;
  uint64_t tp = 0;
  uint64_t head = 0;
  uint64_t state = 0;
  uint64_t replicated = 0;
};

// One of the modes that the planner weighs when the configuration leaves the choice to it.
struct PlannedMode {
  uint64_t chosen = 0;           // prefill steps that ran in it
  double estimated_seconds = 0;  // of all weighed steps, had each run in it, as far as modes differ
};

// What the planner decided, and why: the mode with the smallest estimate of a step was chosen.
struct PlannerStats {
  PlannedMode head;
  PlannedMode tp;
  PlannedMode state;
};

// Elements that rank 0 has sent to other ranks.
struct CollectiveElements {
  uint64_t all_gather = 0;
  uint64_t reduce_scatter = 0;
  uint64_t all_reduce = 0;
  uint64_t all_to_all = 0;
  uint64_t broadcast = 0;
};

// Counters only grow. Blocks: free + cached + held by running sequences = total. Cached ones are taken when
// free ones run out.
struct EngineStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t free_blocks = 0;
  int64_t cached_blocks = 0;  // held by the prefix cache alone
  int64_t total_blocks = 0;
  int64_t free_slots = 0;  // states of running sequences
  int64_t total_slots = 0;
  int64_t used_snapshots = 0;  // states that the prefix cache keeps, or is about to
  int64_t total_snapshots = 0;
  uint64_t steps = 0;
  ModeSteps steps_by_mode;
  PlannerStats planner;
  CollectiveElements collectives;
  // Grows as long as the ranks of this process compute, also within a long step.
  uint64_t work_begun = 0;
  double run_seconds = 0;      // in which the ranks ran steps
  uint64_t prompt_tokens = 0;  // computed so far
  uint64_t cached_tokens = 0;  // prompt tokens that were not computed anew
  uint64_t generated_tokens = 0;
  uint64_t prefix_lookups = 0;  // prompts that began and could have found something in the prefix cache
  uint64_t prefix_hits = 0;     // of these, those that did
  uint64_t evicted_blocks = 0;
  uint64_t evicted_snapshots = 0;
  uint64_t preemptions = 0;
  uint64_t cancellations = 0;  // requests ended by Cancel, a client's going away included
  std::string failure;         // not empty: why nothing will be computed any more (the ranks lost each other)
};

// Thread-safe. Destruction cancels what is left and waits for the loop to end.
class Engine {
 public:
  virtual ~Engine() = default;

  // Checks the request against the model and the pools (empty prompt, ids out of range, prompt at or over the
  // context length, parameters out of range: kInvalidArgument with both numbers) and queues it. The callback
  // is kept until the final delivery. max_new_tokens beyond the remaining context is an error, not a silent
  // cut.
  virtual StatusOr<RequestId> Submit(Request request, OutputCallback callback) = 0;

  // Ends a request soon: its final delivery has kCancelled. Unknown or finished ids are ignored.
  virtual void Cancel(RequestId id) = 0;

  // Forgets every prefix that no running request holds, soon: before the next step. `done` is called then, on
  // the engine's thread as an OutputCallback is, or when the engine ends.
  virtual void FlushCache(std::function<void()> done) = 0;

  virtual const ModelInfo& model_info() const = 0;
  virtual EngineStats stats() const = 0;
  // The most that each rank ever took, in the kinds of the plan; never more than it. Snapshots
  // are slots of the pool of states and counted there. Empty where nothing
  // counts.
  virtual std::vector<RankMemory> memory_peak() const = 0;
};

}  // namespace perigee::engine
