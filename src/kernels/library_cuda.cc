#include "kernels/library_cuda.h"

#include "kernels/cuda_library.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {

Library::Library() {
  PERIGEE_CUDA_CHECK(KdaCudaCreateOverlap(&kda_overlap_));
}

Library::~Library() {
  KdaCudaDestroyOverlap(&kda_overlap_);
}

void DeleteLibrary::operator()(Library* library) const {
  delete library;
}

LibraryPtr NewLibrary() {
  return LibraryPtr(new Library);
}

}  // namespace perigee::kernels::cuda
