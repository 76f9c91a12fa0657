#pragma once

#include <map>
#include <memory>

#include "kernels/gemm/lt_cuda.h"
#include "kernels/kda/kda_hopper.h"
#include "kernels/mla/mla_flash_cudnn.h"

namespace perigee::kernels::cuda {

// What a rank's CUDA kernels keep from call to call, beside memory: KernelContext::handles. One thread.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Products& products() { return products_; }
  const KdaCudaOverlap& kda_overlap() const { return kda_overlap_; }
  // cuDNN's attention of that shape, made when first asked for.
  MlaFlash& Flash(const MlaFlashShape& shape);

 private:
  Products products_;
  KdaCudaOverlap kda_overlap_;
  std::map<MlaFlashShape, std::unique_ptr<MlaFlash>> flash_;
};

}  // namespace perigee::kernels::cuda
