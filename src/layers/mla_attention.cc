#include "layers/mla_attention.h"

#include "kernels/norm/norm.h"

namespace perigee::layers {
namespace {

// The model's own code leaves this norm's epsilon at the class default, whatever rms_norm_eps says
// (specification 3.2).
constexpr float kLatentNormEps = 1e-6f;

}  // namespace

MlaAttention::MlaAttention(const MlaOptions& options, const WeightScope& weights)
    : options_(options),
      in_proj_(weights.Linear({"q_proj", "kv_a_proj_with_mqa"})),
      kv_a_layernorm_(weights.Floats("kv_a_layernorm.weight")),
      o_proj_(weights.Linear({"o_proj"})),
      o_parts_(kernels::SumPartBounds(options.dims.num_heads * options.dims.value)) {
  weights.Matrix("kv_b_proj.weight",
                 [&](const kernels::StoredMatrix& m) { kv_b_ = kernels::MlaWeights::Pack(options.dims, m); });
}

void MlaAttention::Forward(const StepContext& step, ConstMatrixF x, MatrixF y) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::MlaDims& dims = options_.dims;
  const kernels::Workspace::Scope scope(*k.workspace);
  const MatrixF projected(k.workspace->Floats(x.rows * in_proj_.out()), x.rows, in_proj_.out());
  Gemm(k, x, in_proj_, projected);
  const int64_t q_width = dims.num_heads * dims.qk();
  const MatrixF latent = projected.Cols(q_width, dims.rank);
  RmsNorm(k, latent, kv_a_layernorm_, kLatentNormEps, latent);

  std::vector<kernels::MlaSegment> segments;
  for (const batch::SeqSpan& span : step.batch.spans) {
    segments.push_back({span.q_begin, span.q_len, span.kv_len, step.batch.BlockTable(span.seq)});
  }
  const PagedKvView cache = step.kv.View(options_.kv_layer);
  MlaAppend(k, latent, projected.Cols(q_width + dims.rank, dims.rope), segments, cache);

  const int64_t out_width = dims.num_heads * dims.value;
  const MatrixF attended(k.workspace->Floats(x.rows * out_width), x.rows, out_width);
  const auto attend = step.batch.phase == batch::Phase::kPrefill ? kernels::MlaPrefill : kernels::MlaDecode;
  attend(k, dims, kv_b_, projected.Cols(0, q_width), segments, cache, attended);
  GemmInParts(k, attended, o_proj_, o_parts_, y);
}

}  // namespace perigee::layers
