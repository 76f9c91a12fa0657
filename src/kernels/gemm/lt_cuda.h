#pragma once

#include <cstdint>
#include <memory>

#include "kernels/context.h"
#include "tensor/matrix.h"

// cuBLASLt behind one call. For the CUDA backend's own files.
namespace perigee::kernels::cuda {

// y[b, r, o] = sum_i x[b, r, i] * w[b, o, i], or w[b, i, o] if transposed; x and w BF16, sums fp32. Batches
// lie
// `..._step` elements apart.
struct Product {
  ConstMatrix x;  // [rows, in] of the first batch
  const BFloat16* weight = nullptr;
  int64_t weight_stride = 0;  // elements from one row of w to the next
  bool transposed = false;
  Matrix y;  // [rows, out] of the first batch, BF16 or F32
  int64_t batches = 1;
  int64_t x_step = 0;
  int64_t weight_step = 0;
  int64_t y_step = 0;
};

// One rank's handle of cuBLASLt and the algorithms chosen so far. One thread.
class Products {
 public:
  Products();
  ~Products();
  void Run(const KernelContext& context, const Product& product);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// On the context's library.
void RunProduct(const KernelContext& context, const Product& product);

}  // namespace perigee::kernels::cuda
