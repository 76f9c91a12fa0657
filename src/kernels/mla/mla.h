#pragma once

#include <cstdint>
#include <vector>

#include "kernels/context.h"
#include "kernels/gemm/gemm.h"
#include "tensor/cache_view.h"
#include "tensor/matrix.h"
#include "tensor/segment.h"

namespace perigee::kernels {

struct MlaDims {
  int64_t num_heads = 0;
  int64_t nope = 0;   // qk_nope_head_dim
  int64_t rope = 0;   // qk_rope_head_dim: the shared key slice; never rotated in this family
  int64_t value = 0;  // v_head_dim
  int64_t rank = 0;   // kv_lora_rank

  int64_t qk() const { return nope + rope; }
  int64_t record() const { return rank + rope; }  // floats of one latent record
};

// kv_b_proj of some heads, in the forms that the two evaluations need. On CUDA both read `expand`.
struct MlaWeights {
  PackedWeight expand;                 // [num_heads * (nope + value), rank]: materialised
  std::vector<PackedWeight> absorb_q;  // per head [rank, nope]: W_UK transposed
  std::vector<PackedWeight> absorb_o;  // per head [value, rank]: W_UV

  // kv_b: [num_heads * (nope + value), rank] as stored.
  static MlaWeights Pack(const MlaDims& dims, const StoredMatrix& kv_b, Device device = Device::kCpu,
                         MemoryLedger* ledger = nullptr);
};

// Writes the records of new rows: latent [rows, rank] normalised, shared key [rows, rope]. Row i of a segment
// becomes the record of position kv_len - q_len + i. (Here and below row i of a segment, 0-based, sees keys
// [0, kv_len - q_len + i], and segments whose block tables start at the same place are of one sequence.)
void MlaAppend(const KernelContext& context, ConstMatrix latent, ConstMatrix shared_key,
               const PagedSegments& segments, const PagedKvView& cache);

// softmax(q k / sqrt(nope + rope)) v over the cached records (kimi-linear specification 3.5), keys in fixed
// blocks of 64 from key 0 with a running maximum. q [rows, num_heads * (nope + rope)], out [rows, num_heads *
// value]. Materialised: keys and values are expanded from the latents, piece by piece, so the workspace is
// bounded.
void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
                const PagedSegments& segments, const PagedKvView& cache, Matrix out);

// The same result read directly from the latents (absorbed), keys split at multiples of 512 and merged in
// order: for one row a sequence, right for any.
void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
               const PagedSegments& segments, const PagedKvView& cache, Matrix out);

// Room of the two on the CPU for up to `rows` query rows that see up to `keys` keys each.
void TallyMlaPrefill(WorkspaceTally& tally, const MlaDims& dims, int64_t rows, int64_t keys);
void TallyMlaDecode(WorkspaceTally& tally, const MlaDims& dims, int64_t rows, int64_t keys);

}  // namespace perigee::kernels
