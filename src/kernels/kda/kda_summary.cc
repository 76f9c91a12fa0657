#include "kernels/kda/kda_summary.h"

#include "base/check.h"
#include "kernels/kda/kda_cpu.h"

namespace perigee::kernels {
namespace {

void CheckChain(const KdaFoldArgs& a, const KdaFoldChain& chain) {
  PERIGEE_CHECK(!chain.steps.empty() && chain.steps[0].transition == nullptr);
  int64_t last = 1;
  for (const KdaFoldOutput& out : chain.outputs) {
    PERIGEE_CHECK(out.steps >= last && out.steps <= static_cast<int64_t>(chain.steps.size()));
    PERIGEE_CHECK(out.head_begin >= 0 && out.head_begin <= out.head_end && out.head_end <= a.num_heads);
    last = out.steps;
  }
}

}  // namespace

void KdaSummary(const KernelContext& context, const KdaSummaryArgs& a) {
  PERIGEE_CHECK(a.num_heads > 0 && a.key_dim > 0 && a.value_dim > 0);
  PERIGEE_CHECK(a.k.cols == a.num_heads * a.key_dim && a.g.cols == a.k.cols);
  PERIGEE_CHECK(a.v.cols == a.num_heads * a.value_dim && a.beta.cols == a.num_heads);
  for (const KdaSummarySegment& s : a.segments) {
    PERIGEE_CHECK(s.q_begin >= 0 && s.q_len >= 1 && s.q_begin + s.q_len <= a.k.rows);
    PERIGEE_CHECK(s.transition != nullptr && s.state != nullptr);
  }
  const int64_t tasks = static_cast<int64_t>(a.segments.size()) * a.num_heads;
  ForTasks(context, tasks, cpu::KdaSummaryScratchFloats(a.key_dim, a.value_dim),
           [&](int64_t task, float* scratch) {
             cpu::KdaSummaryHead(a, a.segments[static_cast<size_t>(task / a.num_heads)], task % a.num_heads,
                                 scratch);
           });
}

void TallyKdaSummary(WorkspaceTally& tally, int64_t segments, int64_t num_heads, int64_t key_dim,
                     int64_t value_dim) {
  tally.Tasks(segments * num_heads, cpu::KdaSummaryScratchFloats(key_dim, value_dim));
  tally.Tasks(segments * num_heads, cpu::KdaFoldScratchFloats(key_dim, value_dim));
}

void KdaFold(const KernelContext& context, const KdaFoldArgs& a) {
  PERIGEE_CHECK(a.num_heads > 0 && a.key_dim > 0 && a.value_dim > 0);
  for (const KdaFoldChain& chain : a.chains) CheckChain(a, chain);
  const int64_t tasks = static_cast<int64_t>(a.chains.size()) * a.num_heads;
  ForTasks(
      context, tasks, cpu::KdaFoldScratchFloats(a.key_dim, a.value_dim), [&](int64_t task, float* scratch) {
        cpu::KdaFoldHead(a, a.chains[static_cast<size_t>(task / a.num_heads)], task % a.num_heads, scratch);
      });
}

}  // namespace perigee::kernels
