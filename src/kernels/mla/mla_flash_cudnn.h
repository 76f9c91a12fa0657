#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace perigee::kernels::cuda {

// A run of query rows and the run of expanded keys that it attends to.
struct MlaFlashRun {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t k_begin = 0;
  int64_t k_len = 0;
};

struct MlaFlashShape {
  int num_heads = 0;
  int qk = 0;     // width of a query or key, a multiple of 8, at most 256
  int value = 0;  // width of a value, likewise
  // Elements from one row (or key) to the next, multiples of 8.
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t k_head_stride = 0;  // from one head of a key (value) to the next
  int64_t v_head_stride = 0;
  // Causal: row i of a run sees its keys [0, k_len - q_len + i], so k_len >= q_len. Else all of them.
  bool causal = true;

  auto operator<=>(const MlaFlashShape&) const = default;
};

// Pointers into device memory, 16-byte aligned.
struct MlaFlashArgs {
  const __nv_bfloat16* q = nullptr;   // [rows, num_heads, qk]
  const __nv_bfloat16* k = nullptr;   // [keys, num_heads, qk]
  const __nv_bfloat16* v = nullptr;   // [keys, num_heads, value]
  std::span<const MlaFlashRun> runs;  // host memory, read before the call returns; empty runs are skipped
  float scale = 0;                    // of the scores
  __nv_bfloat16* out = nullptr;       // [rows, num_heads, value], rows dense
  float* lse = nullptr;               // [rows, num_heads] natural log of the sums of exponentials
};

// Attention of runs by cuDNN's fused kernel. A plan (cuDNN's word for a chosen, compiled kernel) takes some
// 0.05 s to make, the first of a process 0.6 s, so there are two kinds. Those for ragged runs are made for
// lengths rounded up to powers of two: few, made when first needed or ahead by Prepare. One for exact lengths
// serves a launch of a single run of just these lengths, 5 to 9 % faster; it is used where PrepareExact made
// it: for lengths that recur, as those of full chunks. Owns a cuDNN handle of the device that was current at
// Create; one user thread at a time.
class MlaFlash {
 public:
  // Whether cuDNN starts on the current device: it is several files, of which the program is linked to one.
  static Status CheckLibrary();
  static StatusOr<std::unique_ptr<MlaFlash>> Create(const MlaFlashShape& shape);
  ~MlaFlash();

  // Makes the plan for up to `runs` runs of at most `q_len` rows and `k_len` keys, if it is not there.
  // Returns the bytes of workspace that a call of these lengths needs.
  StatusOr<size_t> Prepare(int64_t runs, int64_t q_len, int64_t k_len);
  // The same for one run of exactly these lengths.
  StatusOr<size_t> PrepareExact(int64_t q_len, int64_t k_len);

  // Rows of no run are left as they are. workspace: what Prepare or PrepareExact gave for these lengths (the
  // larger, where both were called), 256-byte aligned; runs beyond kMaxRuns are taken in several launches
  // that share it. Ordered by `stream`, no host synchronisation.
  Status Run(const MlaFlashArgs& args, void* workspace, size_t workspace_bytes, cudaStream_t stream);

  static constexpr int64_t kMaxRuns = 64;

 private:
  class Impl;
  explicit MlaFlash(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::kernels::cuda
