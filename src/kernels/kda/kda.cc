#include "kernels/kda/kda.h"

#include "base/check.h"
#include "kernels/kda/kda_cpu.h"

namespace perigee::kernels {
namespace {

void CheckArgs(const KdaArgs& a) {
  PERIGEE_CHECK(a.num_heads > 0 && a.key_dim > 0 && a.value_dim > 0);
  const int64_t keys = a.num_heads * a.key_dim;
  const int64_t values = a.num_heads * a.value_dim;
  PERIGEE_CHECK(a.q.cols == keys && a.k.cols == keys && a.g.cols == keys);
  PERIGEE_CHECK(a.v.cols == values && a.out.cols == values && a.beta.cols == a.num_heads);
  for (const KdaSegment& s : a.segments) {
    PERIGEE_CHECK(s.q_begin >= 0 && s.q_len >= 0 && s.q_begin + s.q_len <= a.q.rows && s.state != nullptr);
  }
}

}  // namespace

void KdaPrefill(const KernelContext& context, const KdaArgs& args) {
  CheckArgs(args);
  const int64_t tasks = static_cast<int64_t>(args.segments.size()) * args.num_heads;
  ForTasks(context, tasks, KdaChunkScratchFloats(args.key_dim, args.value_dim),
           [&](int64_t task, float* scratch) {
             KdaPrefillHead(args, args.segments[static_cast<size_t>(task / args.num_heads)],
                            task % args.num_heads, scratch);
           });
}

void KdaDecode(const KernelContext& context, const KdaArgs& args) {
  CheckArgs(args);
  const int64_t tasks = static_cast<int64_t>(args.segments.size()) * args.num_heads;
  ForTasks(context, tasks, KdaDecodeScratchFloats(args.key_dim), [&](int64_t task, float* scratch) {
    KdaDecodeHead(args, args.segments[static_cast<size_t>(task / args.num_heads)], task % args.num_heads,
                  scratch);
  });
}

}  // namespace perigee::kernels
