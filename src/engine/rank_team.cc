#include "engine/rank_team.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/trace.h"

namespace perigee::engine {
namespace {

void Follow(int rank, Worker& worker, BlockingQueue<std::shared_ptr<const batch::BatchPlan>>& plans) {
  SetTraceRank(rank);
  while (const auto plan = plans.Pop()) {
    const StatusOr<std::vector<SpanResult>> done = worker.Run(**plan, nullptr);
    if (done.ok()) continue;
    LogError(StrCat("rank ", rank, ": ", done.status().message()));
    return;
  }
}

}  // namespace

RankTeam::RankTeam(std::vector<std::unique_ptr<Worker>> workers) : workers_(std::move(workers)) {
  PERIGEE_CHECK(!workers_.empty());
  for (size_t r = 1; r < workers_.size(); ++r) {
    followers_.push_back(std::make_unique<Follower>());
    Follower& f = *followers_.back();
    f.thread = std::thread([this, r, &f] { Follow(static_cast<int>(r), *workers_[r], f.plans); });
  }
}

RankTeam::~RankTeam() {
  for (const auto& f : followers_) f->plans.Close();
  for (const auto& f : followers_) f->thread.join();
}

uint64_t RankTeam::work_begun() const {
  uint64_t sum = 0;
  for (const auto& worker : workers_) sum += worker->work_begun().load(std::memory_order_relaxed);
  return sum;
}

StatusOr<std::vector<SpanResult>> RankTeam::Run(const batch::BatchPlan& plan, const Sampler& sampler) {
  if (!followers_.empty()) {
    const auto shared = std::make_shared<const batch::BatchPlan>(plan);
    for (const auto& f : followers_) f->plans.Push(shared);
  }
  return workers_[0]->Run(plan, &sampler);
}

std::vector<RankMemory> RankTeam::memory_peak() const {
  std::vector<RankMemory> ranks;
  for (const auto& worker : workers_) {
    const MemoryBytes peak = worker->memory_peak();
    ranks.push_back({.weights = BytesOf(peak, MemoryKind::kWeights),
                     .latents = BytesOf(peak, MemoryKind::kLatents),
                     .states = BytesOf(peak, MemoryKind::kStates),
                     .snapshots = BytesOf(peak, MemoryKind::kSnapshots),
                     .workspace = BytesOf(peak, MemoryKind::kWorkspace)});
  }
  return ranks;
}

}  // namespace perigee::engine
