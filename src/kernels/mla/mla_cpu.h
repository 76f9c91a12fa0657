#pragma once

#include <cstdint>
#include <span>

#include "kernels/mla/mla.h"

// The CPU's forms of mla.h, used by mla.cc only, and their pieces that run on one thread.
namespace perigee::kernels::cpu {

// A segment with its block table.
struct MlaSegment {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  std::span<const int32_t> block_table;
};

void MlaAppend(const KernelContext& context, ConstMatrixF latent, ConstMatrixF shared_key,
               std::span<const MlaSegment> segments, const PagedKvView& cache);
void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrixF q,
                std::span<const MlaSegment> segments, const PagedKvView& cache, MatrixF out);
void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrixF q,
               std::span<const MlaSegment> segments, const PagedKvView& cache, MatrixF out);

inline constexpr int64_t kMlaKeyBlock = 64;    // keys of one step of the running softmax
inline constexpr int64_t kMlaQueryBlock = 64;  // query rows of one prefill task
inline constexpr int64_t kMlaKeyPiece =
    1024;                                  // keys expanded at a time in prefill; a multiple of the key block
inline constexpr int64_t kMlaSplit = 512;  // keys of one decode task; a multiple of the key block

// Keys [first_key, first_key + count) of a sequence, expanded.
struct ExpandedKeys {
  int64_t first_key = 0;
  int64_t count = 0;
  const float* keys = nullptr;    // [num_heads][ceil(count / 16)][nope + rope][16], zero beyond count
  const float* values = nullptr;  // row j: [num_heads][nope + value], the value part is used
  int64_t value_stride = 0;
};

// Fills the key panels of 16 keys (block `panel`) and one head from expanded rows and the records' shared
// slice.
void MlaPackKeys(const MlaDims& dims, const float* expanded, int64_t expanded_stride,
                 const MlaSegment& segment, const PagedKvView& cache, int64_t first_key, int64_t count,
                 int64_t panel, int64_t head, float* keys);

// Running state of all rows: max and sum [rows, num_heads], accumulated values in out.
struct MlaRunning {
  float* max = nullptr;
  float* sum = nullptr;
};

int64_t MlaPrefillScratchFloats();
// Rows [row, row + rows) of the segment (relative to its first) and one head over the keys of one piece.
void MlaPrefillBlock(const MlaDims& dims, ConstMatrixF q, const MlaSegment& segment,
                     const ExpandedKeys& piece, int64_t head, int64_t row, int64_t rows,
                     const MlaRunning& running, MatrixF out, float* scratch);

// One split of the keys of one query row, all heads: partial maximum, sum [num_heads] and context [num_heads,
// rank].
struct MlaPartial {
  float* max = nullptr;
  float* sum = nullptr;
  float* context = nullptr;
};
int64_t MlaDecodeScratchFloats(const MlaDims& dims);
void MlaDecodeSplit(const MlaDims& dims, const float* absorbed_q, const MlaSegment& segment,
                    const PagedKvView& cache, int64_t visible, int64_t split, const MlaPartial& partial,
                    float* scratch);

// Merges the partials of one row in order into context [num_heads, rank], normalised.
void MlaMerge(const MlaDims& dims, std::span<const MlaPartial> partials, float* context);

}  // namespace perigee::kernels::cpu
