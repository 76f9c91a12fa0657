#include "kernels/kda/kda_cuda.h"

#include <algorithm>
#include <vector>

#include "base/math.h"
#include "kernels/kda/kda_hopper.h"
#include "kernels/library_cuda.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {
namespace {

constexpr int64_t kWidth = 128;  // of keys and values of the tensor-core form
// Chunks of all heads whose factors are in memory at one time: enough to fill the chip, 0.55 GB of 32 heads.
constexpr int64_t kWorkspaceChunks = 256;

const __nv_bfloat16* Bf16(ConstMatrix m) {
  return reinterpret_cast<const __nv_bfloat16*>(m.As<BFloat16>().data);
}
__nv_bfloat16* Bf16(Matrix m) {
  return reinterpret_cast<__nv_bfloat16*>(m.As<BFloat16>().data);
}

KdaCudaDecay DecayOf(const KdaArgs& a) {
  if (a.g.data != nullptr) return {.g = a.g.As<float>().data, .g_stride = a.g.stride};
  return {.z = Bf16(a.decay.z),
          .z_stride = a.decay.z.stride,
          .dt_bias = a.decay.dt_bias.data(),
          .neg_exp_a = a.decay.neg_exp_a.data()};
}

}  // namespace

void KdaPrefill(const KernelContext& context, const KdaArgs& a) {
  if (a.key_dim != kWidth || a.value_dim != kWidth || a.q.dtype != DType::kBF16) {
    return cuda::KdaDecode(context, a);
  }
  std::vector<KdaCudaRun> runs;
  int64_t chunks = 0;
  for (const Segment& s : a.segments.host) {
    runs.push_back({s.q_begin, s.q_len, a.states.Recurrent(s.slot)});
    chunks += CeilDiv(s.q_len, kKdaChunk);
  }
  if (chunks == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const auto heads = static_cast<int>(a.num_heads);
  // Two halves, so that the factors of one are made while the other is used.
  const size_t room = KdaCudaPrefillWorkspaceBytes(heads, std::min(kWorkspaceChunks, 2 * chunks));
  const KdaCudaPrefillArgs args{.num_heads = heads,
                                .key_dim = static_cast<int>(a.key_dim),
                                .value_dim = static_cast<int>(a.value_dim),
                                .q = Bf16(a.q),
                                .q_stride = a.q.stride,
                                .k = Bf16(a.k),
                                .k_stride = a.k.stride,
                                .v = Bf16(a.v),
                                .v_stride = a.v.stride,
                                .decay = DecayOf(a),
                                .beta = a.beta.As<float>().data,
                                .beta_stride = a.beta.stride,
                                .runs = runs,
                                .checkpoints = {},
                                .out = Bf16(a.out),
                                .out_stride = a.out.stride,
                                .workspace = context.workspace->Bytes(room),
                                .workspace_bytes = room,
                                .overlap = &context.handles->kda_overlap()};
  PERIGEE_CUDA_CHECK(KdaCudaPrefill(args, static_cast<cudaStream_t>(context.stream.handle)));
}

bool KdaStepFused(const KernelContext& context, const KdaStepArgs& a) {
  constexpr int64_t kTaps = 4;
  if (a.key_dim != kWidth || a.value_dim != kWidth || a.taps.rows != kTaps || a.qkv.dtype != DType::kBF16) {
    return false;
  }
  PERIGEE_CHECK(a.states.conv_dtype == DType::kBF16);
  // Slots are read where they lie, one in each segment.
  static_assert(sizeof(Segment) % sizeof(int32_t) == 0);
  const Segment* segments =
      a.segments.device != nullptr ? a.segments.device : context.step->Mirror(a.segments.host).device;
  const int64_t width = a.num_heads * kWidth;
  const auto part = [&](auto* first, int64_t which) { return first + which * width; };
  auto* tails = static_cast<__nv_bfloat16*>(a.states.conv);
  const KdaCudaDecodeArgs args{.batch = static_cast<int>(a.qkv.rows),
                               .num_heads = static_cast<int>(a.num_heads),
                               .q = part(Bf16(a.qkv), 0),
                               .k = part(Bf16(a.qkv), 1),
                               .v = part(Bf16(a.qkv), 2),
                               .q_stride = a.qkv.stride,
                               .k_stride = a.qkv.stride,
                               .v_stride = a.qkv.stride,
                               .taps_q = part(a.taps.data, 0),
                               .taps_k = part(a.taps.data, 1),
                               .taps_v = part(a.taps.data, 2),
                               .taps_stride = a.taps.stride,
                               .slots = &segments->slot,
                               .slots_stride = sizeof(Segment) / sizeof(int32_t),
                               .tail_q = part(tails, 0),
                               .tail_k = part(tails, 1),
                               .tail_v = part(tails, 2),
                               .tail_stride = a.qkv.cols,
                               .tail_slot_stride = a.states.conv_stride,
                               .state = a.states.recurrent,
                               .state_slot_stride = a.states.recurrent_stride,
                               .z = Bf16(a.decay.z),
                               .z_stride = a.decay.z.stride,
                               .dt_bias = a.decay.dt_bias.data(),
                               .neg_exp_a = a.decay.neg_exp_a.data(),
                               .beta_logits = Bf16(a.beta_logits),
                               .beta_stride = a.beta_logits.stride,
                               .gate = Bf16(a.output_gate),
                               .gate_stride = a.output_gate.stride,
                               .norm_weight = a.norm_weight.data(),
                               .norm_eps = a.norm_eps,
                               .out = Bf16(a.out),
                               .out_stride = a.out.stride};
  PERIGEE_CUDA_CHECK(KdaCudaDecode(args, static_cast<cudaStream_t>(context.stream.handle)));
  return true;
}

}  // namespace perigee::kernels::cuda
