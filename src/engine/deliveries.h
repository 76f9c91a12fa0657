#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/status.h"
#include "batch/batch_plan.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "scheduler/scheduler.h"

namespace perigee::engine {

// What is owed to the callers: turns step results into Outputs. A request is opened once and gets exactly one
// final delivery. One thread, the one that callbacks run on.
class Deliveries {
 public:
  void Open(RequestId id, const Request& request, OutputCallback callback);

  // Delivers what a step gave to one request, if anything.
  void Step(const batch::PlannedSpan& span, const scheduler::SequenceUpdate& update, SpanResult result);

  // Ends a request without new tokens. Unknown ids are ignored.
  void End(RequestId id, FinishReason finish, Status status);
  std::vector<RequestId> OpenIds() const;
  // Ends all, in the order of their ids.
  void EndAll(FinishReason finish);

 private:
  struct Pending {
    OutputCallback callback;
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
    int64_t cached_tokens = 0;
    bool reused_answer = false;
    std::vector<std::optional<float>> prompt_logprobs;  // filled chunk by chunk; empty once delivered
  };

  static Output StartOutput(const Pending& request);
  void Finish(std::map<RequestId, Pending>::iterator entry, Output output);

  std::map<RequestId, Pending> pending_;
};

}  // namespace perigee::engine
