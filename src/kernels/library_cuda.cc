#include "kernels/library_cuda.h"

#include <utility>

#include "base/check.h"
#include "kernels/cuda_library.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {

Library::Library() {
  PERIGEE_CUDA_CHECK(KdaCudaCreateOverlap(&kda_overlap_));
}

Library::~Library() {
  KdaCudaDestroyOverlap(&kda_overlap_);
}

MlaFlash& Library::Flash(const MlaFlashShape& shape) {
  std::unique_ptr<MlaFlash>& flash = flash_[shape];
  if (flash == nullptr) {
    StatusOr<std::unique_ptr<MlaFlash>> made = MlaFlash::Create(shape);
    PERIGEE_CHECK_MSG(made.ok(), made.ok() ? "" : made.status().message());
    flash = std::move(made).value();
  }
  return *flash;
}

void DeleteLibrary::operator()(Library* library) const {
  delete library;
}

LibraryPtr NewLibrary() {
  return LibraryPtr(new Library);
}

Status CheckLibraries() {
  return MlaFlash::CheckLibrary();
}

}  // namespace perigee::kernels::cuda
