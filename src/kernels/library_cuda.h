#pragma once

#include "kernels/gemm/lt_cuda.h"
#include "kernels/kda/kda_hopper.h"

namespace perigee::kernels::cuda {

// What a rank's CUDA kernels keep from call to call, beside memory: KernelContext::library. One thread.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Products& products() { return products_; }
  const KdaCudaOverlap& kda_overlap() const { return kda_overlap_; }

 private:
  Products products_;
  KdaCudaOverlap kda_overlap_;
};

}  // namespace perigee::kernels::cuda
