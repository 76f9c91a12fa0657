#include <string>
#include <vector>

#include "base/strings.h"
#include "engine/memory_plan.h"

namespace perigee::engine {
namespace {

uint64_t Sum(const std::vector<uint64_t>& values) {
  uint64_t sum = 0;
  for (const uint64_t v : values) sum += v;
  return sum;
}

std::string Count(int64_t n) {
  return WithThousands(static_cast<uint64_t>(n));
}

}  // namespace

std::string MemoryText(const MemoryPlan& plan) {
  std::string out;
  uint64_t snapshots = 0;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankMemory& m = plan.ranks[r];
    snapshots += m.snapshots;
    out += StrCat("rank ", r, ": ", HumanBytes(m.Total()), ": weights ", HumanBytes(m.weights), ", latents ",
                  HumanBytes(m.latents), ", states ", HumanBytes(m.states), ", snapshots ",
                  HumanBytes(m.snapshots), ", workspace ", HumanBytes(m.workspace), "\n");
  }
  if (plan.embedding_bytes > 0) {
    out += StrCat("embedding ", HumanBytes(plan.embedding_bytes), " once a process",
                  plan.processes > 1 ? StrCat(", ", plan.processes, " processes") : "", "; ");
  }
  out += StrCat(HumanBytes(plan.Total()), " in all of ", HumanBytes(plan.budget_bytes), " (", plan.fraction,
                " of ", HumanBytes(plan.memory_bytes), " of the ",
                plan.device == Device::kCpu ? "machine" : "GPU", ", ", HumanBytes(plan.available_bytes),
                " free)\n");
  out += StrCat(plan.Fits() ? "fits: " : "does not fit: ", Count(plan.tokens), " tokens at ",
                HumanBytes(Sum(plan.bytes_per_token)), ", ", Count(plan.sequences), " requests at ",
                HumanBytes(Sum(plan.bytes_per_sequence)), "; longest request: ", Count(plan.LongestRequest()),
                " tokens");
  if (plan.tokens < plan.context_length) {
    out += StrCat(" (the pool; the context length is ", Count(plan.context_length), ")");
  }
  out += "\n";
  if (plan.snapshots > 0) {
    out += StrCat("prefix cache: ", Count(plan.snapshots), " snapshots, ", HumanBytes(snapshots),
                  "; its tokens share the latent pool\n");
  } else {
    out += "prefix cache: off\n";
  }
  return out;
}

}  // namespace perigee::engine
