#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/queue.h"
#include "base/status.h"
#include "batch/batch_plan.h"
#include "engine/memory_plan.h"
#include "engine/worker.h"

namespace perigee::engine {

// All ranks of the model, as the step loop sees them. Here they are in one process: rank 0 runs on the
// caller's thread, every other rank on a thread of its own that follows the plans it is sent and sleeps
// between them. ProcessTeam is the form in which they are processes. Run is called by one thread at a time.
class RankTeam {
 public:
  explicit RankTeam(std::vector<std::unique_ptr<Worker>> workers);
  virtual ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  // Sends the plan to every rank and runs rank 0's part. After an error the team is of no more use, but the
  // sampler may be in use until the team is destroyed.
  virtual StatusOr<std::vector<SpanResult>> Run(const batch::BatchPlan& plan, const Sampler& sampler);

  // Of a rank of this process; rank 0 always is.
  const Worker& worker(size_t rank) const { return *workers_[rank]; }
  // By rank; any thread.
  std::vector<RankMemory> memory_peak() const;
  size_t size() const { return workers_.size(); }
  // Pieces of kernels begun by the ranks of this process. Any thread.
  uint64_t work_begun() const;

 private:
  struct Follower {
    BlockingQueue<std::shared_ptr<const batch::BatchPlan>> plans;
    std::thread thread;
  };

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Follower>> followers_;  // of ranks 1, 2, ...
};

}  // namespace perigee::engine
