#include "kernels/cuda_library.h"

namespace perigee::kernels::cuda {

void DeleteLibrary::operator()(Library*) const {}

LibraryPtr NewLibrary() {
  return nullptr;
}

}  // namespace perigee::kernels::cuda
